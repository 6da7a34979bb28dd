# needs: perl
cat >t.pl <<'END'
use strict; use warnings; use File::Temp 'tempfile'; use File::Find; use IO::Select; use POSIX ':sys_wait_h'; use Time::HiRes 'ualarm';
my @kids = map { my $n = $_; my $p = fork // die; exit $n unless $p; $p } 1 .. 10; my $sum = 0;
for (@kids) { waitpid($_, 0); $sum += $? >> 8 } print "$sum\n";
print `echo from a shell`, $? , "\n"; open my $w, '|-', 'tr a-z A-Z' or die; print $w "piped\n"; close $w;
local $SIG{ALRM} = sub { die "alarm\n" }; eval { ualarm 50000; select undef, undef, undef, 10 }; print $@;
mkdir 'd'; for (1 .. 50) { open my $f, '>', "d/$_" or die; print $f $_ x 100 } my $n = 0; find(sub { $n += -s if -f }, 'd'); print "$n\n";
my ($fh, $name) = tempfile(UNLINK => 1); flock $fh, 2 or die; print $fh "x"; close $fh; print -s $name, "\n";
my %h; $h{$_ % 7} .= $_ for 1 .. 100; print join(',', map { length $h{$_} } sort keys %h), "\n"; print join(' ', (getpwuid 0)[0, 2, 3]), "\n";
socketpair(my $a, my $b, 1, 1, 0) or die; syswrite $a, "hello"; sysread $b, my $buf, 10; print "$buf\n"; $SIG{CHLD} = 'IGNORE'; system 'true'; kill 'TERM', $$;
END
perl t.pl || echo "exit code $?"
