//! A guest under QEMU, with its own links, and a shell in it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::testbed::Namespace;
use serde_json::Value;
use tests::KillOnDrop;

/// A network device of the guest. On the N-th of them the guest is 10.9.N.2, and the host's
/// namespace 10.9.N.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nic {
    /// Intel 82576: up to 8 queues, one per CPU. Up to 4 queues have a receive and a transmit
    /// interrupt each, more have one for both. It coalesces.
    Igb,
    E1000e,
    /// Paravirtual, with as many queues as a node has CPUs.
    Virtio,
    /// VMware's paravirtual device: as many queues as CPUs. It has no link of queues to NAPIs.
    Vmxnet3,
}

impl Nic {
    fn driver(self) -> &'static str {
        match self {
            Nic::Igb => "igb",
            Nic::E1000e => "e1000e",
            Nic::Virtio => "virtio_net",
            Nic::Vmxnet3 => "vmxnet3",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Shape {
    pub nics: Vec<Nic>,
    pub numa_nodes: u32,
    pub cpus_per_node: u32,
}

/// A running guest. Dropping it kills it, and so does the end of the test's thread or program.
pub struct Machine {
    // The guest would power itself off when its port closes, but nothing waits for that.
    _qemu: KillOnDrop,
    port: BufReader<UnixStream>,
    socket: PathBuf,
    monitor: PathBuf,
    namespace: Namespace,
    /// The interfaces' names, in the order of the shape's NICs.
    pub interfaces: Vec<String>,
    _folder: tempfile::TempDir,
}

/// The exit status and output of one request.
#[derive(Debug)]
pub struct Answer {
    pub status: i32,
    pub text: String,
}

/// Software emulation boots in some ten seconds.
const BOOT: Duration = Duration::from_secs(120);
const ANSWER: Duration = Duration::from_secs(180);

/// The folder with the kernel, the initramfs and QEMU. The test is skipped if there is none.
pub fn prepared() -> Option<PathBuf> {
    // Not a failure with LULL_REQUIRE_ALL: CI runs `tests/guest/run` beside the other tests.
    let folder = std::env::var_os("LULL_GUEST").map(PathBuf::from);
    if folder.is_none() {
        requirements::note("the guest (tests/guest/run prepares one and runs these tests in it)");
    }
    folder
}

impl Machine {
    pub fn boot(folder: &Path, shape: &Shape) -> io::Result<Self> {
        let namespace = Namespace::new()?;
        let sockets = tempfile::tempdir()?;
        let (socket, monitor) = (sockets.path().join("port"), sockets.path().join("monitor"));
        let mut command = "ip link set lo up; exec".to_owned();
        for argument in lab::instructions::qemu(folder).into_iter().chain(arguments(shape, &socket, &monitor))
        {
            command.push_str(&format!(" '{argument}'"));
        }
        let mut taps = String::new();
        for (index, nic) in shape.nics.iter().enumerate() {
            let queues = if *nic == Nic::Virtio { " multi_queue" } else { "" };
            taps.push_str(&format!(
                "ip tuntap add tap{index} mode tap{queues} && ip link set tap{index} up && \
                 ip addr add 10.9.{index}.1/24 dev tap{index} || exit 1; "
            ));
        }
        // Not by a thread that enters the namespace and ends: QEMU would be killed with it.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "nsenter"]);
        qemu.arg(format!("--net=/proc/{}/fd/{}", std::process::id(), namespace.file().as_raw_fd()));
        // The shell execs QEMU, so that signals are for QEMU itself.
        qemu.args(["/bin/sh", "-c"]).arg(format!("{taps}{command}")).stdin(Stdio::null());
        qemu.stdout(std::fs::File::create(sockets.path().join("qemu"))?);
        qemu.stderr(std::fs::File::create(sockets.path().join("qemu-errors"))?);
        let mut qemu = KillOnDrop::from(qemu.spawn()?);
        let port = match connect(&socket, &mut qemu) {
            Ok(port) => port,
            Err(error) => {
                drop(qemu);
                let errors = std::fs::read_to_string(sockets.path().join("qemu-errors"))?;
                // The guest's console. A kernel that panics ends QEMU.
                let console = std::fs::read(sockets.path().join("qemu"))?;
                let console = String::from_utf8_lossy(&console[console.len().saturating_sub(4096)..]);
                return Err(io::Error::other(format!("{error}: {errors}{console}")));
            }
        };
        let mut machine =
            Self { _qemu: qemu, port, socket, monitor, namespace, interfaces: Vec::new(), _folder: sockets };
        machine.name_interfaces(shape)?;
        Ok(machine)
    }

    fn name_interfaces(&mut self, shape: &Shape) -> io::Result<()> {
        for (index, nic) in shape.nics.iter().enumerate() {
            let name = self.run(&format!("grep -l '{}' /sys/class/net/*/address", mac(index)));
            let name = name.trim().split('/').nth(4).unwrap_or_default().to_owned();
            let driver = self.run(&format!("basename $(readlink /sys/class/net/{name}/device/driver)"));
            assert_eq!(driver.trim(), nic.driver(), "{name}");
            self.run(&format!("ip addr add 10.9.{index}.2/24 dev {name} && ip link set {name} up"));
            self.interfaces.push(name);
        }
        for name in self.interfaces.clone() {
            self.wait_for_carrier(&name);
        }
        Ok(())
    }

    /// Runs one line of shell in the guest.
    pub fn ask(&mut self, request: &str) -> Answer {
        self.send(request);
        self.receive(request)
    }

    fn send(&mut self, request: &str) {
        assert!(!request.contains('\n'), "one line");
        self.port.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
    }

    fn receive(&mut self, request: &str) -> Answer {
        let give_up = format!("the guest did not respond to: {request}");
        let mut line = String::new();
        self.port.read_line(&mut line).expect(&give_up);
        let (status, length) = line.trim().split_once(' ').expect(&give_up);
        let mut text = vec![0; length.parse().expect(&give_up)];
        self.port.read_exact(&mut text).expect(&give_up);
        Answer { status: status.parse().expect(&give_up), text: String::from_utf8_lossy(&text).into_owned() }
    }

    /// Runs one line of shell, which must succeed. Returns its output.
    pub fn run(&mut self, request: &str) -> String {
        let answer = self.ask(request);
        assert_eq!(answer.status, 0, "{request}: {}", answer.text);
        answer.text
    }

    /// Suspends the guest to memory, for a time that begins when it sleeps, and wakes it. Not by an
    /// alarm of the guest: on a loaded host that may ring before the guest sleeps.
    /// `wait_until_awake` must return when the guest's programs run again.
    pub fn suspend(&mut self, time: Duration, wait_until_awake: impl FnOnce()) {
        const REQUEST: &str = "echo deep >/sys/power/mem_sleep && echo mem >/sys/power/state";
        let monitor = UnixStream::connect(&self.monitor).unwrap();
        monitor.set_read_timeout(Some(ANSWER)).unwrap();
        let mut messages = BufReader::new(&monitor).lines().map(|line| line.unwrap());
        // QEMU sends events once its client has negotiated, for which there is a reply.
        (&monitor).write_all(b"{\"execute\": \"qmp_capabilities\"}\n").unwrap();
        messages.find(|message| message.contains("\"return\"")).unwrap();
        self.send(REQUEST);
        messages.find(|message| message.contains("\"SUSPEND\"")).unwrap();
        std::thread::sleep(time);
        (&monitor).write_all(b"{\"execute\": \"system_wakeup\"}\n").unwrap();
        messages.find(|message| message.contains("\"WAKEUP\"")).unwrap();
        wait_until_awake();
        // A guest that wakes takes its port for disconnected until QEMU tells it of a new
        // connection. It is about to write its answer: a read would end.
        self.port.get_ref().shutdown(Shutdown::Both).unwrap();
        self.port = BufReader::new(UnixStream::connect(&self.socket).unwrap());
        self.port.get_ref().set_read_timeout(Some(ANSWER)).unwrap();
        let answer = self.receive(REQUEST);
        assert_eq!(answer.status, 0, "{}", answer.text);
    }

    pub fn json(&mut self, request: &str) -> Value {
        let text = self.run(request);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{request}: {error}: {text}"))
    }

    pub fn wait_for(&mut self, condition: &str) {
        // A server's eight workers start within seconds, but not on a loaded host.
        let end = Instant::now() + Duration::from_secs(60);
        while self.ask(condition).status != 0 {
            assert!(Instant::now() < end, "timed out waiting for: {condition}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn wait_for_carrier(&mut self, interface: &str) {
        self.wait_for(&format!("grep -q 1 /sys/class/net/{interface}/carrier"));
    }

    /// All settings of an interface that a policy may change. Without what is only observed: the
    /// core of the last interrupt, and notes.
    pub fn settings(&mut self, interface: &str) -> Value {
        let mut settings = self.json(&format!("policies --format json show {interface}"));
        settings["notes"].take();
        for queue in settings["queues"].as_array_mut().into_iter().flatten() {
            queue["irq_effective"].take();
            // The id of the thread.
            queue["napi"]["pid"].take();
        }
        settings
    }

    /// Joins the cables of all devices by a switch, so that they reach each other.
    pub fn join_cables(&self) {
        let taps =
            (0..self.interfaces.len()).map(|index| format!("ip link set tap{index} master switch && "));
        let all =
            format!("ip link add switch type bridge && {}ip link set switch up", taps.collect::<String>());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &all]);
        assert!(self.namespace.run(move || command.status()).unwrap().success());
    }

    /// Connects to a port of the guest's side of a link.
    pub fn connect(&self, nic: usize, port: u16) -> io::Result<TcpStream> {
        self.namespace.run(move || TcpStream::connect(format!("10.9.{nic}.2:{port}")))
    }

    /// Runs one of the workspace's binaries on the other end of the guest's links.
    pub fn outside(&self, program: &str, arguments: &[&str]) -> io::Result<std::process::Output> {
        let mut command = Command::new(tests::own_program(program));
        command.args(arguments);
        self.namespace.run(move || command.output())
    }

    /// Like [`Machine::outside`], in the background.
    pub fn outside_spawn(&self, program: &str, arguments: &[&str]) -> io::Result<KillOnDrop> {
        let mut command = Command::new(tests::own_program(program));
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        self.namespace.run(move || command.spawn()).map(KillOnDrop::from)
    }
}

fn mac(index: usize) -> String {
    format!("52:54:00:00:00:{index:02x}")
}

fn connect(socket: &Path, qemu: &mut Child) -> io::Result<BufReader<UnixStream>> {
    let end = Instant::now() + BOOT;
    let stream = loop {
        match UnixStream::connect(socket) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > end || qemu.try_wait()?.is_some() => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    stream.set_read_timeout(Some(BOOT))?;
    let mut port = BufReader::new(stream);
    let mut line = String::new();
    port.read_line(&mut line)?;
    if line.trim() != "ready" {
        return Err(io::Error::other(format!("the guest said {line:?}")));
    }
    port.get_ref().set_read_timeout(Some(ANSWER))?;
    Ok(port)
}

fn arguments(shape: &Shape, socket: &Path, monitor: &Path) -> Vec<String> {
    let mut arguments: Vec<String> = Vec::new();
    let mut add = |text: &str| arguments.extend(text.split(' ').map(str::to_owned));
    add("-machine q35 -accel tcg,thread=multi -cpu max -nodefaults -display none -no-reboot");
    let cpus = shape.cpus_per_node;
    add(&format!("-smp {} -m {}", cpus * shape.numa_nodes, 512 * shape.numa_nodes));
    if shape.numa_nodes > 1 {
        for node in 0..shape.numa_nodes {
            add(&format!("-object memory-backend-ram,id=memory{node},size=512M"));
            let (first, last) = (cpus * node, cpus * node + cpus - 1);
            add(&format!("-numa node,nodeid={node},cpus={first}-{last},memdev=memory{node}"));
        }
        let node = shape.numa_nodes - 1;
        add(&format!("-device pxb-pcie,id=far,bus_nr=128,bus=pcie.0,numa_node={node}"));
    }
    arguments.push("-append".to_owned());
    // On a loaded host an emulated timer ticks too late for the check whether it ticks at all.
    arguments.push("console=ttyS0 quiet panic=-1 mitigations=off no_timer_check".to_owned());
    let mut add = |text: &str| arguments.extend(text.split(' ').map(str::to_owned));
    add("-serial stdio -device virtio-serial-pci,bus=pcie.0");
    add(&format!("-chardev socket,path={},server=on,wait=off,id=port", socket.display()));
    add("-device virtserialport,chardev=port,name=lull");
    add(&format!("-qmp unix:{},server=on,wait=off", monitor.display()));
    for (index, nic) in shape.nics.iter().enumerate() {
        let queues = if *nic == Nic::Virtio { format!(",queues={cpus}") } else { String::new() };
        add(&format!("-netdev tap,id=net{index},ifname=tap{index},script=no,downscript=no{queues}"));
        let bus = if shape.numa_nodes > 1 { "far" } else { "pcie.0" };
        // Each on its own root port: the virtual functions of igb take the slots after it.
        add(&format!("-device pcie-root-port,id=port{index},bus={bus},chassis={index},slot={index}"));
        let device = match nic {
            Nic::Igb => "igb".to_owned(),
            Nic::E1000e => "e1000e".to_owned(),
            Nic::Vmxnet3 => "vmxnet3".to_owned(),
            // One for each direction of each queue, and two for configuration and control.
            Nic::Virtio => format!("virtio-net-pci,mq=on,vectors={}", 2 * cpus + 2),
        };
        add(&format!("-device {device},bus=port{index},netdev=net{index},mac={},romfile=", mac(index)));
    }
    arguments
}
