// The scenes of `bench flight` that Go's singleflight can play: uncontended, herd, threads, failing.
// Time is the CPU time of the whole process, collector included, except where the unit says wall.
package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	warmUp = 20_000
	batch  = 1_000
	value  = uint64(17)
)

func main() {
	ops, err := strconv.Atoi(os.Args[len(os.Args)-1])
	if len(os.Args) != 3 || err != nil {
		panic("usage: flight-go SCENE OPS")
	}
	// As for the others, whose runtime has one thread.
	runtime.GOMAXPROCS(1)
	switch os.Args[1] {
	case "uncontended":
		uncontended(ops)
	case "herd":
		herd(ops)
	case "threads":
		threads(ops)
	case "failing":
		failing(ops)
	default:
		panic("no such scene")
	}
}

// Keys are strings there; making them is not what is measured.
func uncontended(ops int) {
	keys := make([]string, warmUp+ops)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	var group singleflight.Group
	call := func(from, to int) {
		for i := from; i < to; i++ {
			got, err, _ := group.Do(keys[i], func() (interface{}, error) { return uint64(i), nil })
			if err != nil || got.(uint64) != uint64(i) {
				panic("wrong value")
			}
		}
	}
	call(0, warmUp)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begun := cpuTime()
	call(warmUp, len(keys))
	used := cpuTime() - begun
	runtime.ReadMemStats(&after)
	print("ns/op", float64(used)/float64(ops))
	print("allocs/op", float64(after.Mallocs-before.Mallocs)/float64(ops))
}

// The herd comes once before it is measured, then several times, and each part counts as it was at its best.
func herd(followers int) {
	times := 300_000 / followers
	if times < 1 {
		times = 1
	} else if times > 10 {
		times = 10
	}
	// A collection would fall on one turn or the other, and what is measured is their difference.
	debug.SetGCPercent(-1)
	oneHerd(followers)
	idling, joining, waking, bytes := oneHerd(followers)
	for i := 1; i < times; i++ {
		i, j, w, b := oneHerd(followers)
		idling, joining, waking, bytes = math.Min(idling, i), math.Min(joining, j), math.Min(waking, w), math.Min(bytes, b)
	}
	print("join ns", (joining-idling)/float64(followers))
	print("wake ns", waking/float64(followers))
	print("bytes/follower", bytes/float64(followers))
}

// Followers are started before the clock runs, and have two turns: one to do nothing, which is what a turn costs, and
// one to join.
func oneHerd(followers int) (idling, joining, waking, bytes float64) {
	var group singleflight.Group
	gate := make(chan struct{})
	var right, loads atomic.Int64
	var all sync.WaitGroup
	load := func() (interface{}, error) {
		loads.Add(1)
		<-gate
		return value, nil
	}
	follow := func() {
		if got, err, _ := group.Do("hot", load); err == nil && got.(uint64) == value {
			right.Add(1)
		}
		all.Done()
	}

	all.Add(followers + 1)
	go follow()
	park()
	bytes = -liveBytes()
	for i := 0; i < followers/batch; i++ {
		var turns atomic.Int64
		first, second := make(chan struct{}), make(chan struct{})
		for j := 0; j < batch; j++ {
			go func() {
				turns.Add(1)
				<-first
				turns.Add(1)
				<-second
				turns.Add(1)
				follow()
			}()
		}
		turn := func(gate chan struct{}, after int64) float64 {
			begun := cpuTime()
			close(gate)
			for turns.Load() < after {
				runtime.Gosched()
			}
			return float64(cpuTime() - begun)
		}
		for turns.Load() < batch {
			runtime.Gosched()
		}
		idling += turn(first, 2*batch)
		joining += turn(second, 3*batch)
	}
	park()
	bytes += liveBytes()

	begun := cpuTime()
	close(gate)
	all.Wait()
	waking = float64(cpuTime() - begun)
	if right.Load() != int64(followers+1) || loads.Load() != 1 {
		panic("not everybody shares one load")
	}
	return idling, joining, waking, bytes
}

// Gives those that have begun the time to get to where they wait.
func park() {
	time.Sleep(10 * time.Millisecond)
}

func threads(ops int) {
	const goroutines = 2
	runtime.GOMAXPROCS(goroutines)
	var keys [64]string
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	var group singleflight.Group
	var all sync.WaitGroup
	all.Add(goroutines)
	begun := time.Now()
	for seed := uint64(0); seed < goroutines; seed++ {
		go func(random uint64) {
			for i := 0; i < ops/goroutines; i++ {
				random = random*6364136223846793005 + 1442695040888963407
				key := random >> 58
				got, err, _ := group.Do(keys[key], func() (interface{}, error) { return key, nil })
				if err != nil || got.(uint64) != key {
					panic("wrong value")
				}
			}
			all.Done()
		}(seed)
	}
	all.Wait()
	print("wall ns/op", float64(time.Since(begun))/float64(ops))
}

func failing(callers int) {
	var group singleflight.Group
	gate := make(chan struct{})
	var calls atomic.Int64
	var all sync.WaitGroup
	all.Add(callers)
	call := func() {
		_, err, _ := group.Do("hot", func() (interface{}, error) {
			calls.Add(1)
			<-gate
			time.Sleep(time.Millisecond)
			return nil, errors.New("refused")
		})
		if err == nil {
			panic("nobody can have got a value")
		}
		all.Done()
	}
	for i := 0; i < callers; i++ {
		go call()
	}
	park()
	close(gate)
	all.Wait()
	print("calls", float64(calls.Load()))
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func liveBytes() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc + stats.StackInuse)
}

func print(unit string, value float64) {
	fmt.Printf("%s %f\n", unit, value)
}
