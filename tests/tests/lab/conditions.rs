//! What stands in for the interrupt of a server's queue.

use lab::testbed::{INTERRUPT_THREAD_PRIORITY, Receiver, SERVER_INTERFACE};
use policies::host::scheduler::fifo_priority;
use policies::netlink::netdev::Netdev;
use policies::{Cpus, Pid, host};
use serial_test::serial;
use tests::isolated;
use tests::testbed::enter;

#[test]
#[isolated(root)]
#[serial]
fn each_receiver_is_what_it_is_called() {
    let testbed = enter(1);
    let queue = || host::interface(SERVER_INTERFACE).unwrap().queues.remove(0);
    for (receiver, priority) in [(Receiver::Fifo, INTERRUPT_THREAD_PRIORITY), (Receiver::Thread, 0)] {
        receiver.receive(&testbed, 0).unwrap();
        for other in Receiver::ALL {
            assert_eq!(other.receives(&testbed).unwrap(), other == receiver, "{other} after {receiver}");
        }
        let napi = Netdev::open().unwrap().napi(queue().napi.unwrap().id).unwrap();
        let thread = Pid::from_raw(napi.pid.unwrap().try_into().unwrap()).unwrap();
        assert_eq!(fifo_priority(thread).unwrap(), priority, "{receiver}");
        assert_eq!(Cpus::of_thread(Some(thread)).unwrap(), Cpus::one(0), "{receiver}");
    }
}
