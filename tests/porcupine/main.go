// Judges histories of key-value clients with Porcupine: lines of JSON in, one verdict per run and key out.
// README.md describes the lines. Nothing here is shared with the checker that it is to confirm.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// How long one key's history may take. A verdict of "unknown" counts as none.
const patience = 120 * time.Second

type line struct {
	Run    string
	Key    string
	Client int
	Op     string
	Value  uint64
	Found  uint64
	Expect uint64
	Ok     bool
	Call   int64
	Return int64
	Maybe  bool
}

type register struct {
	run, key string
}

// What a register may hold after an operation: nothing if it can not have happened.
func step(state, input, output interface{}) []interface{} {
	holds, op := state.(uint64), input.(line)
	var after []interface{}
	switch op.Op {
	case "get":
		if op.Found == holds {
			after = append(after, holds)
		}
	case "put":
		after = append(after, op.Value)
	case "swap":
		if op.Ok && holds == op.Expect {
			after = append(after, op.Value)
		}
		if !op.Ok && holds != op.Expect {
			after = append(after, holds)
		}
	}
	// Its effect is not known: it may have had none.
	if op.Maybe {
		after = append(after, holds)
	}
	return after
}

func judge(start uint64, history []porcupine.Operation) porcupine.CheckResult {
	model := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{start} },
		Step: step,
	}
	return porcupine.CheckOperationsTimeout(model.ToModel(), history, patience)
}

func fail(format string, arguments ...interface{}) {
	fmt.Fprintf(os.Stderr, format+"\n", arguments...)
	os.Exit(2)
}

func main() {
	starts := map[register]uint64{}
	histories := map[register][]porcupine.Operation{}
	var order []register
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for number := 1; in.Scan(); number++ {
		var op line
		if err := json.Unmarshal(in.Bytes(), &op); err != nil {
			fail("line %d: %v", number, err)
		}
		of := register{op.Run, op.Key}
		switch op.Op {
		case "start":
			if _, twice := starts[of]; twice {
				fail("line %d: %v starts twice", number, of)
			}
			starts[of] = op.Value
			order = append(order, of)
		case "get", "put", "swap":
			if _, known := starts[of]; !known || op.Call > op.Return {
				fail("line %d: no start, or an end before the begin: %s", number, in.Text())
			}
			operation := porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: op.Return}
			histories[of] = append(histories[of], operation)
		default:
			fail("line %d: no such operation: %q", number, op.Op)
		}
	}
	if err := in.Err(); err != nil {
		fail("reading: %v", err)
	}
	sort.Slice(order, func(a, b int) bool {
		return order[a].run < order[b].run || order[a].run == order[b].run && order[a].key < order[b].key
	})
	out := bufio.NewWriter(os.Stdout)
	for _, of := range order {
		verdict := judge(starts[of], histories[of])
		fmt.Fprintf(out, "%s\t%s\t%d\t%s\n", of.run, of.key, len(histories[of]), verdict)
	}
	if err := out.Flush(); err != nil {
		fail("writing: %v", err)
	}
}
