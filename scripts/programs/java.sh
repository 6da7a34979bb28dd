# needs: java javac
cat >A.java <<'END'
import java.nio.file.*; import java.util.*; import java.util.concurrent.*; import java.util.concurrent.atomic.*; import java.util.stream.*;
public class A {
    static int depth(int n) { return depth(n + 1) + 1; }
    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8);
        List<Future<Long>> sums = new ArrayList<>();
        for (int i = 0; i < 16; i++) { final int n = i; sums.add(pool.submit(() -> LongStream.range(0, 100000).map(x -> x * n).sum())); }
        long all = 0; for (Future<Long> f : sums) all += f.get();
        pool.shutdown(); System.out.println(all);
        AtomicInteger count = new AtomicInteger(); List<Thread> ts = new ArrayList<>();
        for (int i = 0; i < 50; i++) { Thread t = new Thread(() -> { for (int j = 0; j < 1000; j++) count.incrementAndGet(); }); ts.add(t); t.start(); }
        for (Thread t : ts) t.join();
        System.out.println(count);
        long kept = 0; for (int i = 0; i < 2000; i++) { byte[] b = new byte[100000]; kept += b.length; }
        System.out.println(kept);
        List<byte[]> full = new ArrayList<>(); try { while (true) full.add(new byte[1 << 20]); } catch (OutOfMemoryError e) { full = null; System.out.println("out of memory"); }
        try { depth(0); } catch (StackOverflowError e) { System.out.println("stack overflow"); }
        try { String s = null; s.length(); } catch (NullPointerException e) { System.out.println("null"); }
        Files.writeString(Path.of("f"), "text"); System.out.println(Files.readString(Path.of("f")) + Files.size(Path.of("f")));
        Process p = new ProcessBuilder("sh", "-c", "echo child; exit 3").start();
        System.out.print(new String(p.getInputStream().readAllBytes())); System.out.println(p.waitFor());
        ScheduledExecutorService timers = Executors.newScheduledThreadPool(1);
        System.out.println(timers.schedule(() -> "later", 20, TimeUnit.MILLISECONDS).get()); timers.shutdown();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println("hook")));
    }
}
END
javac A.java
java -Xmx64m A
java -Xmx64m -XX:+UseSerialGC -Xint A | head -2
