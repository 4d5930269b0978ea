package main

import (
	"context"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// execs measures ADD and DEL from exec to result.
func execs(ctx context.Context, b *bench) ([]Result, error) {
	return b.execs(ctx, "exec-add", "exec-del")
}

func (b *bench) execs(ctx context.Context, add, del string) ([]Result, error) {
	var adds, dels [2][]float64 // Berth's and the reference's
	for i := range b.rounds + warmUp {
		for j, r := range []*runtime{b.berth, b.reference} {
			rt, err := r.sandbox(len(r.made))
			if err != nil {
				return nil, err
			}
			up, err := r.add(ctx, rt)
			if err != nil {
				return nil, err
			}
			down, err := r.del(ctx, rt)
			if err != nil {
				return nil, err
			}
			if i >= warmUp {
				adds[j], dels[j] = append(adds[j], millis(up)), append(dels[j], millis(down))
			}
		}
	}
	return []Result{
		ratio(add, "ms", adds[0], adds[1]),
		ratio(del, "ms", dels[0], dels[1]),
	}, nil
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
