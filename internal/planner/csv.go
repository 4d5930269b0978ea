package planner

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
)

// WriteCSV writes the addresses of all subnets over time, one row for each alternative, point and subnet.
func (r *Result) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"alternative", "seconds", "subnet", "used", "warm", "cooling", "enis", "others", "free"}) // Flush returns the error
	for _, a := range r.Alternatives {
		for i, at := range a.Series.At {
			for _, s := range a.Series.Subnets {
				row := []string{a.Name, strconv.FormatFloat(at, 'f', -1, 64), s.Name}
				for _, n := range []int{s.Used[i], s.Warm[i], s.Cooling[i], s.ENIs[i], s.Others, s.Free[i]} {
					row = append(row, strconv.Itoa(n))
				}
				_ = out.Write(row)
			}
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}
