// A static program of Go that writes and syncs its file; it knows nothing of a cache.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
)

const record = 600

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

// For each byte on its standard input, writes a record and says its number when it is durable; or, as E and a number, which error
// there was instead, and tries it again the next time.
func forever(file *os.File, run uint64) {
	in := bufio.NewReader(os.Stdin)
	bytes := make([]byte, record)
	for n := uint64(0); ; {
		if _, err := in.ReadByte(); err != nil {
			return
		}
		for at := 0; at < record; at += 8 {
			binary.LittleEndian.PutUint64(bytes[at:], run<<32|n)
		}
		_, err := file.WriteAt(bytes, int64(n*record))
		if err == nil {
			err = file.Sync()
		}
		var number syscall.Errno
		if errors.As(err, &number) {
			fmt.Printf("E%d\n", int(number))
			continue
		}
		must(err)
		fmt.Println(n)
		n++
	}
}

// Many goroutines, each with a file that it appends to, while the collector runs and goroutines are taken off their threads; then a program
// that it executes appends to each.
func many(name string, goroutines int) {
	var group sync.WaitGroup
	for own := 0; own < goroutines; own++ {
		group.Add(1)
		go func() {
			defer group.Done()
			file, err := os.OpenFile(fmt.Sprintf("%s-%d", name, own), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
			must(err)
			for n := 0; n < 200; n++ {
				_, err := fmt.Fprintf(file, "%d %d\n", own, n)
				must(err)
				if n%10 == 0 {
					must(file.Sync())
				}
				if n%50 == 0 {
					runtime.GC()
				}
			}
			child := exec.Command("/bin/echo", "a child")
			child.Stdout = file
			must(child.Run())
			must(file.Sync())
			must(file.Close())
		}()
	}
	group.Wait()
}

func main() {
	number, err := strconv.Atoi(os.Args[3])
	must(err)
	if os.Args[1] == "many" {
		many(os.Args[2], number)
		return
	}
	file, err := os.OpenFile(os.Args[2], os.O_RDWR, 0)
	must(err)
	forever(file, uint64(number))
}
