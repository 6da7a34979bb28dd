# needs: ruby
cat >t.rb <<'END'
require 'open3'; require 'tempfile'; require 'fileutils'; require 'json'; require 'timeout'; require 'digest'
puts Array.new(10) { |n| fork { exit n } }.sum { |p| Process.wait2(p)[1].exitstatus }
out, err, status = Open3.capture3('sh -c "cat; echo err >&2; exit 4"', stdin_data: 'x' * 200_000); p out.size, err, status.exitstatus
q = Queue.new; ts = 8.times.map { |i| Thread.new { 1000.times { q << i } } }; ts.each(&:join); p q.size
begin Timeout.timeout(0.05) { sleep } rescue p $!.class end
FileUtils.mkdir_p 'a/b'; 50.times { |i| File.write "a/b/#{i}", i.to_s * i }; FileUtils.cp_r 'a', 'c'; p Dir['c/**/*'].size
File.open('l', File::CREAT | File::RDWR) { |f| f.flock File::LOCK_EX; f.puts 'locked' }; p File.read('l'), JSON.parse('{"a": [1, null]}')
r, w = IO.pipe; Thread.new { 5.times { |i| w.puts i }; w.close }; p r.read; trap('USR1') { puts 'signal' }; Process.kill 'USR1', $$; sleep 0.01
p Digest::SHA256.hexdigest('x')[0, 8], Fiber.new { Fiber.yield 1; 2 }.then { |f| [f.resume, f.resume] }; GC.start; p Tempfile.create { |f| f.write 'x'; f.flush; File.size f }
END
ruby t.rb
