# needs: go
export GOCACHE=$PWD/cache GOPATH=$PWD/path GOFLAGS=-mod=mod GOPROXY=off CGO_ENABLED=0 GO111MODULE=on
cat >go.mod <<<'module demo'
cat >main.go <<'END'
package main

import ("context"; "fmt"; "os"; "os/exec"; "os/signal"; "runtime"; "sync"; "sync/atomic"; "syscall"; "time")

func main() {
	var wg sync.WaitGroup; var n int64; c := make(chan int, 10)
	for i := 0; i < 10000; i++ { wg.Add(1); go func() { defer wg.Done(); atomic.AddInt64(&n, 1); runtime.Gosched() }() }
	wg.Wait(); fmt.Println(n)
	go func() { for i := 0; i < 100000; i++ { c <- i }; close(c) }()
	sum := 0; for x := range c { sum += x }; fmt.Println(sum)
	ticks := 0; t := time.NewTicker(2 * time.Millisecond); for range t.C { if ticks++; ticks == 20 { t.Stop(); break } }; fmt.Println(ticks)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond); defer cancel(); <-ctx.Done(); fmt.Println(ctx.Err())
	order := make(chan int, 3); for _, d := range []int{600, 50, 300} { d := d; time.AfterFunc(time.Duration(d)*time.Millisecond, func() { order <- d }) }
	fmt.Println(<-order, <-order, <-order)
	out, err := exec.Command("sh", "-c", "echo child; exit 3").Output(); fmt.Println(string(out), err)
	s := make(chan os.Signal, 1); signal.Notify(s, syscall.SIGUSR1); syscall.Kill(os.Getpid(), syscall.SIGUSR1); fmt.Println(<-s)
	func() { defer func() { fmt.Println(recover()) }(); var p *int; fmt.Println(*p) }()
	stop := false; go func() { for !stop { } }(); time.Sleep(10 * time.Millisecond); runtime.GC(); fmt.Println("preempted")
	os.WriteFile("f", []byte("text"), 0600); b, _ := os.ReadFile("f"); fmt.Println(string(b))
}
END
go build -o demo . && ./demo && go vet . 2>&1 | tail -1
