//go:build cgo

// With the C library the loader loads this program.
package main

import "C"
