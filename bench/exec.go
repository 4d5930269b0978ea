package main

import (
	"context"
	"time"

	"github.com/berthnet/berth/bench/objects"
)

// execs measures ADD and DEL from exec to result, in turn with the reference
// and with what an ADD cannot be below.
func execs(ctx context.Context, b *bench) ([]Result, error) {
	host, err := b.bed.openFloor()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	s, err := b.bed.execs(ctx, func(i int, note note) error { return b.bed.floor(ctx, host, i, note) })
	if err != nil {
		return nil, err
	}
	return append(execResults(s, "exec-add", "exec-del"), ratio("exec-add-floor", "ms", s["add"], s["floor"]), measured("exec-null", "ms", s["null"]...)), nil
}

func execResults(s series, add, del string) []Result {
	return []Result{ratio(add, "ms", s["add"], s["reference add"]), ratio(del, "ms", s["del"], s["reference del"])}
}

// execs calls Berth and the reference in turn, and between after Berth.
func (b *testbed) execs(ctx context.Context, between func(i int, note note) error) (series, error) {
	return rounds(b.options.rounds, func(i int, note note) error {
		if err := addAndDel(ctx, b.berth, "", note); err != nil {
			return err
		}
		if err := between(i, note); err != nil {
			return err
		}
		return addAndDel(ctx, b.reference, "reference ", note)
	})
}

// addAndDel measures an ADD in a new sandbox, and its DEL.
func addAndDel(ctx context.Context, r *runtime, whose string, note note) error {
	rt, err := r.sandbox()
	if err != nil {
		return err
	}
	add, err := r.add(ctx, rt)
	if err != nil {
		return err
	}
	del, err := r.del(ctx, rt)
	note(whose+"add", millis(add))
	note(whose+"del", millis(del))
	return err
}

// parallel measures the ADDs a second of 8 workers against one's.
func parallel(ctx context.Context, b *bench) ([]Result, error) {
	const batch = 32
	var rates [2][]float64
	for range max(3, b.options.rounds/8) {
		for j, workers := range []int{8, 1} {
			all, err := b.bed.berth.sandboxes(batch)
			if err != nil {
				return nil, err
			}
			start := time.Now()
			if err := objects.Each(ctx, batch, workers, func(ctx context.Context, i int) error {
				_, err := b.bed.berth.add(ctx, all[i])
				return err
			}); err != nil {
				return nil, err
			}
			rates[j] = append(rates[j], batch/time.Since(start).Seconds())
			if err := objects.Each(ctx, batch, 8, func(ctx context.Context, i int) error {
				_, err := b.bed.berth.del(ctx, all[i])
				return err
			}); err != nil {
				return nil, err
			}
		}
	}
	return []Result{ratio("parallel-add", "ADD/s", rates[0], rates[1])}, nil
}
