use super::*;

fn ends() -> (Arc<File>, Arc<File>) {
    pipe(0, 0, 0)
}

fn read(file: &Arc<File>, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; len];
    let n = file.ops().read(file, &mut buf, 0)?;
    buf.truncate(n);
    Ok(buf)
}

fn write(file: &Arc<File>, data: &[u8]) -> Result<usize, Errno> {
    file.ops().write(file, data, 0).map(|(n, _)| n)
}

#[test]
fn bytes_come_out_in_order_across_the_ring_end() {
    let (r, w) = ends();
    let mut expected = 0u8;
    let mut next = 0u8;
    for round in 0..200usize {
        let data: Vec<u8> = (0..(round * 37) % 5000 + 1)
            .map(|_| {
                next = next.wrapping_add(1);
                next
            })
            .collect();
        assert_eq!(write(&w, &data), Ok(data.len()));
        let mut left = data.len();
        while left > 0 {
            let got = read(&r, 777).unwrap();
            for byte in &got {
                expected = expected.wrapping_add(1);
                assert_eq!(*byte, expected);
            }
            left -= got.len();
        }
    }
    assert_eq!(read(&r, 1), Err(Errno::EAGAIN));
}

#[test]
fn small_writes_are_atomic_and_large_ones_partial() {
    let (r, w) = ends();
    assert_eq!(write(&w, &vec![1; DEFAULT_CAPACITY - 100]), Ok(DEFAULT_CAPACITY - 100));
    assert_eq!(write(&w, &[2; 101]), Err(Errno::EAGAIN));
    assert_eq!(write(&w, &[2; 5000]), Err(Errno::EAGAIN));
    assert_eq!(write(&w, &[2; 4096 + 100]), Ok(100));
    assert_eq!(write(&w, &[2; 1]), Err(Errno::EAGAIN));
    assert!(!w.ops().poll(&w).contains(PollEvents::OUT));
    read(&r, 4096).unwrap();
    assert!(w.ops().poll(&w).contains(PollEvents::OUT));
}

#[test]
fn packets_keep_their_bounds_and_lose_their_tails() {
    let (r, w) = pipe(libc::O_DIRECT as u32, 0, 0);
    write(&w, b"hello").unwrap();
    write(&w, b"wide world").unwrap();
    write(&w, b"x").unwrap();
    assert_eq!(read(&r, 100).unwrap(), b"hello");
    assert_eq!(read(&r, 4).unwrap(), b"wide");
    assert_eq!(read(&r, 100).unwrap(), b"x");
    for _ in 0..16 {
        write(&w, b"p").unwrap();
    }
    assert_eq!(write(&w, b"p"), Err(Errno::EAGAIN));
}

#[test]
fn ends_see_each_other_go() {
    let (r, w) = ends();
    write(&w, b"rest").unwrap();
    drop(w);
    assert_eq!(r.ops().poll(&r), READABLE | PollEvents::HUP);
    assert_eq!(read(&r, 10).unwrap(), b"rest");
    assert_eq!(read(&r, 10).unwrap(), b"");
    let (r, w) = ends();
    drop(r);
    assert!(w.ops().poll(&w).contains(PollEvents::ERR));
    assert_eq!(write(&w, b"x"), Err(Errno::EPIPE));
    assert_eq!(write(&w, b""), Ok(0));
}

#[test]
fn capacity_changes_keep_the_contents() {
    let pipe = Pipe::new();
    let _ends = pipe.open(true, true, None);
    pipe.write(&vec![7; 60000], false).unwrap();
    assert_eq!(pipe.set_capacity(4096, false), Err(Errno::EBUSY));
    assert_eq!(pipe.set_capacity(100_000, false), Ok(131_072));
    assert_eq!(pipe.set_capacity(2 << 20, false), Err(Errno::EPERM));
    assert_eq!(pipe.write(&vec![8; 71072], false), Ok(71072));
    let mut all = vec![0; 200_000];
    assert_eq!(pipe.read(&mut all), Ok(131_072));
    assert_eq!((all[59999], all[60000]), (7, 8));
}

#[test]
fn a_fifo_reader_is_not_hung_up_before_a_writer_came() {
    let pipe = Pipe::new();
    let file = anon::file("fifo", libc::O_RDONLY as u32, Box::new(pipe.open(true, false, None)));
    assert_eq!(file.ops().poll(&file), PollEvents::empty());
    drop(pipe.open(false, true, None));
    assert_eq!(file.ops().poll(&file), PollEvents::HUP);
}

#[test]
fn pipes_beyond_the_soft_limit_are_small() {
    assert_eq!(new_capacity(0), DEFAULT_CAPACITY);
    assert_eq!(new_capacity(SOFT_TOTAL - DEFAULT_CAPACITY), DEFAULT_CAPACITY);
    assert_eq!(new_capacity(SOFT_TOTAL - DEFAULT_CAPACITY + 1), SMALL_CAPACITY);
    assert_eq!(new_capacity(usize::MAX), SMALL_CAPACITY);
    let mut charge = Charge(0);
    charge.set(DEFAULT_CAPACITY);
    charge.set(PIPE_BUF);
    assert_eq!(charge.0, PIPE_BUF);
}
