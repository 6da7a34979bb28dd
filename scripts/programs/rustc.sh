# needs: $RUST/bin/rustc gcc
# options: --ro $RUST
cat >a.rs <<'END'
use std::collections::HashMap; use std::io::Write; use std::process::Command;
fn main() {
    let out = Command::new("sh").args(["-c", "echo child; exit 3"]).output().unwrap();
    println!("{:?} {}", out.status.code(), String::from_utf8_lossy(&out.stdout));
    let mut words: HashMap<&str, usize> = HashMap::new();
    for w in "a b a".split(' ') { *words.entry(w).or_default() += 1; }
    println!("{}", words["a"]);
    std::fs::File::create("f").unwrap().write_all(b"written").unwrap();
    println!("{}", std::fs::read_to_string("f").unwrap());
    println!("{:?}", std::panic::catch_unwind(|| { let v: Vec<u8> = vec![]; v[1] }).is_err());
}
END
$RUST/bin/rustc -O a.rs && ./a
$RUST/bin/rustc -C panic=abort -C target-feature=+crt-static -o s a.rs && { ./s || echo "exit code $?"; }
