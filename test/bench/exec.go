package main

import (
	"context"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// execs measures ADD and DEL from exec to result, in turn with the reference
// and with what an ADD cannot be below.
func execs(ctx context.Context, b *bench) ([]Result, error) {
	f, err := b.openFloor()
	if err != nil {
		return nil, err
	}
	defer f.host.Close()
	times, err := b.execs(ctx, f.measure)
	if err != nil {
		return nil, err
	}
	return append(times.results("exec-add", "exec-del"), f.results(times.adds[0])...), nil
}

// execTimes are in ms, Berth's and the reference's.
type execTimes struct{ adds, dels [2][]float64 }

func (t execTimes) results(add, del string) []Result {
	return []Result{ratio(add, "ms", t.adds[0], t.adds[1]), ratio(del, "ms", t.dels[0], t.dels[1])}
}

// execs calls Berth and the reference in turn, and between after Berth, if any.
func (b *bench) execs(ctx context.Context, between func(ctx context.Context, round int) error) (t execTimes, err error) {
	for i := range b.rounds + warmUp {
		for j, r := range []*runtime{b.berth, b.reference} {
			if j == 1 && between != nil {
				if err := between(ctx, i); err != nil {
					return t, err
				}
			}
			up, down, err := addAndDel(ctx, r)
			if err != nil {
				return t, err
			}
			if i >= warmUp {
				t.adds[j], t.dels[j] = append(t.adds[j], millis(up)), append(t.dels[j], millis(down))
			}
		}
	}
	return t, nil
}

// addAndDel measures an ADD in a new sandbox, and its DEL.
func addAndDel(ctx context.Context, r *runtime) (add, del time.Duration, err error) {
	rt, err := r.sandbox(len(r.made))
	if err != nil {
		return 0, 0, err
	}
	if add, err = r.add(ctx, rt); err != nil {
		return 0, 0, err
	}
	del, err = r.del(ctx, rt)
	return add, del, err
}

// parallel measures the ADDs a second of 8 workers against one's.
func parallel(ctx context.Context, b *bench) ([]Result, error) {
	const batch = 32
	var rates [2][]float64
	for range max(3, b.rounds/8) {
		for j, workers := range []int{8, 1} {
			all, err := b.berth.sandboxes(batch)
			if err != nil {
				return nil, err
			}
			start := time.Now()
			if err := each(all, workers, func(rt *libcni.RuntimeConf) error {
				_, err := b.berth.add(ctx, rt)
				return err
			}); err != nil {
				return nil, err
			}
			rates[j] = append(rates[j], batch/time.Since(start).Seconds())
			if err := each(all, 8, func(rt *libcni.RuntimeConf) error {
				_, err := b.berth.del(ctx, rt)
				return err
			}); err != nil {
				return nil, err
			}
		}
	}
	return []Result{ratio("parallel-add", "ADD/s", rates[0], rates[1])}, nil
}

// each calls fn for every sandbox by so many workers, and returns the first error.
func each(all []*libcni.RuntimeConf, workers int, fn func(*libcni.RuntimeConf) error) error {
	todo := make(chan *libcni.RuntimeConf, len(all))
	for _, rt := range all {
		todo <- rt
	}
	close(todo)
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	for range workers {
		wg.Go(func() {
			for rt := range todo {
				if err := fn(rt); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}
