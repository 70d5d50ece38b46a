// Writes files from many goroutines while their stacks grow and the collector runs. It links the C library, so that the loader
// loads it, as it does Debian's programs of Go.
package main

// #include <unistd.h>
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"sync"
)

func main() {
	C.getppid()
	var group sync.WaitGroup
	for n := 0; n < 8; n++ {
		group.Add(1)
		go func() {
			defer group.Done()
			name := fmt.Sprintf("%s/go-%d", os.TempDir(), n)
			for round := 0; round < 20; round++ {
				file, err := os.Create(name)
				if err != nil {
					panic(err)
				}
				for part := 0; part < 10; part++ {
					if _, err := file.WriteAt(make([]byte, 1000), int64(part*1000)); err != nil {
						panic(err)
					}
				}
				if err := file.Sync(); err != nil {
					panic(err)
				}
				file.Close()
				runtime.GC()
				if err := os.Rename(name, name+"x"); err != nil {
					panic(err)
				}
			}
		}()
	}
	group.Wait()
}
