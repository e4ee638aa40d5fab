//! The counters of TCP in the server's namespace.

use std::fs;
use std::io;

use super::veth::Testbed;

impl Testbed {
    /// The number of segments that the server's kernel has sent again since the testbed was created
    /// (`RetransSegs` of `/proc/net/snmp`).
    pub fn server_retransmissions(&self) -> io::Result<u64> {
        let snmp = self.server.run(|| fs::read_to_string("/proc/thread-self/net/snmp"))?;
        let missing = || io::Error::other("/proc/net/snmp has no counter RetransSegs");
        tcp_counter(&snmp, "RetransSegs").ok_or_else(missing)
    }
}

/// A counter from the text of `/proc/net/snmp`: a line of names, then a line of values.
fn tcp_counter(snmp: &str, name: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let index = lines.next()?.split_whitespace().position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_of_tcp_is_found_by_its_name() {
        let snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm ActiveOpens RetransSegs\nTcp: 1 22 333\n";
        assert_eq!(tcp_counter(snmp, "RetransSegs"), Some(333));
        assert_eq!(tcp_counter(snmp, "OutRsts"), None);
        assert_eq!(tcp_counter("", "RetransSegs"), None);
    }
}
