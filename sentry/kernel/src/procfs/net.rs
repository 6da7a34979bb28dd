//! `/proc/net`: no network yet, so that the tables have their heads and no rows.

use std::sync::Arc;

use sentry_abi::Errno;
use sentry_vfs::inode::Inode;

use super::Proc;
use crate::Kernel;

const FILES: &[(&str, &str)] = &[
    (
        "dev",
        "Inter-|   Receive                                                |  Transmit\n \
         face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n",
    ),
    (
        "arp",
        "IP address       HW type     Flags       HW address            Mask     Device\n",
    ),
    ("if_inet6", ""),
    (
        "netlink",
        "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n",
    ),
    (
        "packet",
        "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n",
    ),
    (
        "protocols",
        "protocol  size sockets  memory press maxhdr  slab module     cl co di ac io in de sh ss gs se re sp bi br ha uh gp em\n",
    ),
    (
        "raw",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n",
    ),
    (
        "route",
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n",
    ),
    (
        "sockstat",
        "sockets: used 0\nTCP: inuse 0 orphan 0 tw 0 alloc 0 mem 0\nUDP: inuse 0 mem 0\n",
    ),
    (
        "tcp",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n",
    ),
    (
        "tcp6",
        "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n",
    ),
    (
        "udp",
        "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n",
    ),
    (
        "udp6",
        "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n",
    ),
];

pub(super) fn directory(proc: &Arc<Proc>) -> Arc<dyn Inode> {
    let dir = proc.fs.directory(0o555);
    for (name, text) in FILES {
        dir.add(name, proc.fs.text(*text));
    }
    dir.add("unix", proc.text(unix));
    dir
}

fn unix(kernel: &Arc<Kernel>) -> Result<Vec<u8>, Errno> {
    let mut out = b"Num       RefCount Protocol Flags    Type St Inode Path\n".to_vec();
    for socket in kernel.unix.sockets() {
        out.extend_from_slice(&socket.line());
    }
    Ok(out)
}
