package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/berthnet/berth/bench/vpccni"
)

// atATime is how many workloads are measured at the same time of those that wait
// for most of it.
const atATime = 3

// compareWithAmazon measures Berth against the Amazon VPC CNI.
func compareWithAmazon(ctx context.Context, b *bench) (_ []Result, err error) {
	o := vpccni.Order{Assets: b.options.assets}
	if o.BinDir, err = filepath.Abs(b.options.binDir); err != nil {
		return nil, err
	}
	if o.CNIDir, err = filepath.Abs(b.options.amazonDir); err != nil {
		return nil, err
	}
	defer vpccni.Sweep()
	got := make([][]Result, len(vpccni.Workloads))
	for _, alone := range []bool{true, false} {
		g, ctx := errgroup.WithContext(ctx)
		if g.SetLimit(atATime); alone {
			g.SetLimit(1)
		}
		for i, w := range vpccni.Workloads {
			if w.Alone != alone {
				continue
			}
			g.Go(func() (err error) {
				got[i], err = compareAt(ctx, o, w)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return nil, err
		}
	}
	return slices.Concat(got...), nil
}

// compareAt measures both at one workload.
func compareAt(ctx context.Context, o vpccni.Order, w vpccni.Workload) (results []Result, err error) {
	values := make([][2][]float64, len(w.Figures))
	for run := range w.Runs {
		say("%s: run %d of %d", w.Name, run+1, w.Runs)
		both, err := turn(ctx, o, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, err)
		}
		for i, f := range w.Figures {
			say("  %s: Berth %.3g, the Amazon VPC CNI %.3g %s", f.Name, both[0][i], both[1][i], f.Unit)
			for j := range both {
				values[i][j] = append(values[i][j], both[j][i])
			}
		}
	}
	for i, f := range w.Figures {
		r := ratio(f.Name, f.Unit, values[i][0], values[i][1])
		if r.Reference == 0 { // as of failed ADDs, where there are none
			r.Ratio = 0
		}
		results = append(results, r)
	}
	return results, nil
}

// turn has both systems do a workload once, and returns what each measured.
func turn(ctx context.Context, o vpccni.Order, w vpccni.Workload) (both [2][]float64, err error) {
	g, ctx := errgroup.WithContext(ctx)
	if w.Alone {
		g.SetLimit(1)
	}
	for i, system := range vpccni.Systems {
		g.Go(func() (err error) {
			both[i], err = w.Run(ctx, o, system)
			return err
		})
	}
	return both, g.Wait()
}
