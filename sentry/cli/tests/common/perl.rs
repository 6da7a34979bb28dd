//! A guest that carries out what a test tells it, line by line.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::Host;

/// A guest that carries out lines of Perl, with the shared file open as `$f`.
pub struct Guest {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const PRELUDE: &str = r#"
$| = 1;
open($f, '+<', '/shared/file') or open($f, '<', '/shared/file') or die;
sub record {
    my ($command, $type, $start, $len) = @_;
    my $lock = pack('s s x4 q q l x4', $type, 0, $start, $len, 0);
    fcntl($f, $command, $lock) or return 0 + $!;
    my @now = unpack('s s x4 q q l', $lock);
    return "$now[0] $now[2] $now[3]";
}
sub whole { return flock($f, $_[0]) ? 'ok' : 0 + $!; }
# The first two pages of the file, mapped at a place of their own.
sub map_it { return syscall(9, 0x20000000, 8192, 3, 0x11, fileno($f), 0) == -1 ? 0 + $! : 'ok'; }
sub peek { return unpack("P$_[1]", pack('Q', 0x20000000 + $_[0])); }
sub poke {
    my ($at, $what) = @_;
    pipe(my $r, my $w);
    syswrite($w, $what);
    return syscall(0, fileno($r), 0x20000000 + $at, length($what));
}
sub mode { return sprintf('%o', (stat($_[0]))[2] & 0xfff); }
sub list { opendir(my $d, $_[0]) or return 0 + $!; return join(' ', sort grep { !/^[.]/ } readdir($d)); }
sub content { open(my $c, '<', $_[0]) or return 0 + $!; return join('', <$c>); }
sub written {
    my ($path, $text) = @_;
    open(my $c, '>', $path) or return 0 + $!;
    syswrite($c, $text);
    return close($c) ? 'ok' : 0 + $!;
}
# inotify(7), by its numbers.
my $i;
sub notify { my $fd = syscall(294, 0x80800); $fd >= 0 or return 0 + $!; open($i, '+<&=', $fd); return 'ok'; }
sub watch { my ($path, $mask) = @_; my $wd = syscall(254, fileno($i), "$path", $mask); return $wd < 0 ? 0 + $! : $wd; }
sub told {
    my $all = '';
    my %cookies;
    while (sysread($i, my $b, 65536)) {
        while (length($b)) {
            my ($wd, $mask, $cookie, $len) = unpack('l L L L', $b);
            my $name = unpack('Z*', substr($b, 16, $len));
            substr($b, 0, 16 + $len) = '';
            $cookie = $cookie ? '#' . ($cookies{$cookie} //= 1 + keys(%cookies)) : '';
            $all .= sprintf(' %d:%x%s%s', $wd, $mask, $cookie, $name eq '' ? '' : ":$name");
        }
    }
    return $all;
}
sub wait_by_read { syscall(72, fileno($i), 4, 0); sysread($i, my $b, 65536); syscall(72, fileno($i), 4, 0x800); return 'told'; }
sub wait_by_select { my $set = ''; vec($set, fileno($i), 1) = 1; select($set, undef, undef, 60); return told(); }
sub wait_by_poll { my $p = pack('l s s', fileno($i), 1, 0); syscall(7, $p, 1, 60000); return told(); }
sub wait_by_epoll {
    my $e = syscall(291, 0);
    my $event = pack('L Q', 1, 0);
    syscall(233, $e, 1, fileno($i), $event);
    my $n = syscall(232, $e, $event, 1, 60000);
    syscall(3, $e);
    return told();
}
print "ready\n";
while (<STDIN>) { print eval($_), "\n"; }
"#;

impl Guest {
    pub fn start(host: Host, platform: &str, option: &str, dir: &Path) -> Option<Guest> {
        let mount = format!("{}:/shared", dir.display());
        let mut command = host.sentry_with(&["exec", "--platform", platform, option, &mount, "perl", "-e", PRELUDE])?;
        let guest = Guest::run(&mut command);
        eprintln!("{host:?} {platform} {option}");
        Some(guest)
    }

    /// The same program, beside the sandbox.
    pub fn on_host(dir: &Path) -> Guest {
        let prelude = PRELUDE.replace("/shared", &dir.display().to_string());
        Guest::run(std::process::Command::new("perl").args(["-e", &prelude]))
    }

    pub fn run(command: &mut std::process::Command) -> Guest {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut guest = Guest { child, input, output };
        // The launcher's harness says something first.
        let ready = (0..4).any(|_| guest.line() == "ready");
        assert!(ready);
        guest
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("read");
        line.trim_end().to_owned()
    }

    pub fn say(&mut self, code: &str) {
        writeln!(self.input, "{code}").expect("write");
    }

    pub fn ask(&mut self, code: &str) -> String {
        self.say(code);
        self.line()
    }

    /// The sandbox's kernel.
    pub fn sentries(&self) -> Vec<nix::unistd::Pid> {
        let mut all = vec![i32::try_from(self.child.id()).expect("process id")];
        let mut next = 0;
        while let Some(pid) = all.get(next).copied() {
            next += 1;
            all.extend(super::children(pid));
        }
        let is_kernel = |pid: &i32| super::command_line(*pid).split(' ').nth(1) == Some("boot");
        all.into_iter()
            .filter(is_kernel)
            .map(nix::unistd::Pid::from_raw)
            .collect()
    }

    pub fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().expect("wait").success());
    }
}

/// Runs a test with a file that the host has open too, on each platform and host. Its directory is mounted with this
/// option.
pub fn with_guests_in(option: &str, test: impl Fn(Guest, &File, &Path)) {
    if !Path::new("/usr/bin/perl").exists() {
        eprintln!("SKIPPED: no Perl");
        return;
    }
    for (host, platform) in [
        (Host::Plain, "systrap"),
        (Host::Plain, "ptrace"),
        (Host::Ordinary, "systrap"),
        (Host::Restricted, "systrap"),
    ] {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("file");
        fs::write(&path, [b'.'; 8192]).expect("write");
        for path in [dir.path(), &path] {
            fs::set_permissions(path, Permissions::from_mode(0o777)).expect("chmod");
        }
        let file = File::options().read(true).write(true).open(&path).expect("open");
        if let Some(guest) = Guest::start(host, platform, option, dir.path()) {
            test(guest, &file, dir.path());
        }
    }
}
