# needs: $RUST/bin/cargo gcc
# options: --ro $RUST
export PATH=$RUST/bin:$PATH
cargo new -q --vcs none --lib demo && cd demo
cat >src/lib.rs <<'END'
use std::{sync::mpsc, thread, time::Duration};
/// Adds in threads.
/// ```
/// assert_eq!(demo::sum(3), 3);
/// ```
pub fn sum(n: u64) -> u64 {
    let (tx, rx) = mpsc::channel();
    for i in 0..n { let tx = tx.clone(); thread::spawn(move || { thread::sleep(Duration::from_millis(i)); tx.send(i).unwrap() }); }
    drop(tx);
    rx.iter().sum()
}
#[test] fn adds() { assert_eq!(sum(20), 190); }
#[test] #[should_panic] fn panics() { panic!("as it should") }
END
mkdir src/bin && echo 'fn main() { println!("{}", demo::sum(10)); }' >src/bin/run.rs
cargo build --offline --quiet && target/debug/run
cargo build --offline --quiet --release && target/release/run
cargo test --offline --quiet 2>&1 | grep -v '^$' | sed -e 's/finished in .*//' -e '/^all doctests ran/d'
cargo run --offline --quiet --bin run
