//! The operations of an answer.

use core::sync::atomic::Ordering::Relaxed;

use crate::exchange;
use crate::layout::*;
use crate::sys;

/// Runs the answer's operations in turn, leaving each result in its first argument. False if a copy failed.
pub fn run(slot: &Slot) -> bool {
    let count = (slot.op_count.load(Relaxed) as usize).min(MAX_OPS);
    let base = slot as *const Slot as u64;
    let data = base + DATA_OFFSET as u64;
    let mut clean = true;
    for index in 0..count {
        let place = (base as usize + OPS_OFFSET) as *mut Op;
        let op = unsafe { place.add(index).read_volatile() };
        let a = op.a;
        let result = match op.kind {
            op::COPY_OUT => {
                let done = sys::copy(a[1], data + a[0], a[2]);
                clean &= done == a[2];
                done as i64
            }
            op::COPY_IN => sys::copy(data + a[0], a[1], a[2]) as i64,
            op::CALL => call(slot, &op),
            op::RECEIVE => receive(slot, a[0] as usize),
            op::CLOSE => {
                for fd in &slot.received[..received(slot)] {
                    sys::close(fd.load(Relaxed));
                }
                slot.received_count.store(0, Relaxed);
                0
            }
            op::FORK => fork(slot, a[0]),
            op::THREAD => {
                // Not its own slot: its child's stack would be ours.
                unsafe { sys::stub_thread(a[0]) }
            }
            op::SET_FS => {
                sys::set_fs_base(a[0]);
                0
            }
            op::SET_GS => {
                sys::set_gs_base(a[0]);
                0
            }
            op::GET_FS => sys::fs_base() as i64,
            op::GET_GS => sys::gs_base() as i64,
            op::ZERO => {
                let done = sys::zero(a[0], a[1]);
                clean &= done == a[1];
                done as i64
            }
            op::CMPXCHG => sys::cmpxchg(a[0], a[1] as u32, a[2] as u32),
            op::WAKE => {
                let word = sys::sandbox() + WAKE_OFFSET as u64 + (a[0] % MAX_THREADS as u64) * 4;
                sys::call(202, [word, 1, i32::MAX as u64, 0, 0, 0])
            }
            op::EXIT => {
                sys::call(sys::EXIT, [0; 6]);
                sys::trap()
            }
            _ => -22,
        };
        unsafe { (&raw mut (*place.add(index)).a[0]).write_volatile(result as u64) };
    }
    clean
}

fn received(slot: &Slot) -> usize {
    (slot.received_count.load(Relaxed) as usize).min(slot.received.len())
}

fn call(slot: &Slot, op: &Op) -> i64 {
    let mut args = [op.a[1], op.a[2], op.a[3], op.a[4], op.a[5], op.a[6]];
    let argument = op.flags as usize;
    if (1..=6).contains(&argument) {
        let index = args[argument - 1] as usize;
        if index >= received(slot) {
            return -9;
        }
        args[argument - 1] = slot.received[index].load(Relaxed) as u64;
    }
    sys::call(op.a[0], args)
}

/// Waits for a message without descriptors: its byte.
pub fn wait_for_byte(slot: &Slot) -> u8 {
    let mut byte = 0;
    receive_message(slot, 0, &mut byte);
    byte
}

/// recvmsg(2) on the control socket.
fn receive(slot: &Slot, want: usize) -> i64 {
    receive_message(slot, want, &mut 0)
}

fn receive_message(slot: &Slot, want: usize, byte: &mut u8) -> i64 {
    #[repr(C)]
    struct Header {
        name: u64,
        name_len: u64,
        iov: u64,
        iov_len: u64,
        control: u64,
        control_len: u64,
        flags: u64,
    }
    #[repr(C, align(8))]
    struct Control {
        len: u64,
        level: i32,
        kind: i32,
        fds: [i32; 16],
    }
    let iov = [&raw mut *byte as u64, 1];
    let mut control = Control { len: 0, level: 0, kind: 0, fds: [-1; 16] };
    let mut header = Header {
        name: 0,
        name_len: 0,
        iov: iov.as_ptr() as u64,
        iov_len: 1,
        control: &raw mut control as u64,
        control_len: core::mem::size_of::<Control>() as u64,
        flags: 0,
    };
    let fd = exchange::header().control_fd.load(Relaxed) as u64;
    let result = loop {
        let result = sys::call(sys::RECVMSG, [fd, &raw mut header as u64, 0x4000_0000, 0, 0, 0]);
        if result != sys::EINTR {
            break result;
        }
    };
    if result < 0 {
        return result;
    }
    let len = unsafe { core::ptr::read_volatile(&raw const control.len) };
    let count = if len >= 20 { ((len as usize - 16) / 4).min(slot.received.len()) } else { 0 };
    for index in 0..count {
        let value = unsafe { core::ptr::read_volatile((&raw const control.fds as *const i32).add(index)) };
        slot.received[index].store(value, Relaxed);
    }
    slot.received_count.store(count as u32, Relaxed);
    if count == want { 0 } else { -9 }
}

/// Forks; `rsp` is where the child's stack begins. Received: the child's arena and its control socket.
fn fork(slot: &Slot, rsp: u64) -> i64 {
    if received(slot) < 2 {
        return -9;
    }
    let arena = slot.received[0].load(Relaxed);
    let control = slot.received[1].load(Relaxed);
    crate::local::locked(|| unsafe { sys::stub_fork(arena, sys::arena(), rsp, control) })
}
