package kubectl

import (
	"fmt"
	"slices"

	"github.com/berthnet/berth/internal/ctl/diagnose"
	"github.com/berthnet/berth/internal/ctl/view"
)

// judged is a row with a diagnosis.
type judged interface {
	id() string // namespace and name
	diagnosis() diagnose.Diagnosis
}

// explain prints summary and remedy of the rows that need attention.
func explain[T judged](p *view.Printer, rows []T) {
	for _, r := range unwell(rows) {
		p.Printf("\n%s %s\n", view.Toned{Text: fmt.Sprintf("! %s:", r.id()), Tone: view.Bad}, r.diagnosis().Summary)
		if remedy := r.diagnosis().Remedy; remedy != "" {
			p.Printf("  What to do: %s\n", remedy)
		}
	}
}

// unwell returns the rows that need attention.
func unwell[T judged](rows []T) []T {
	return slices.DeleteFunc(slices.Clone(rows), func(r T) bool { return r.diagnosis().OK })
}

// told sums rows that are not well up, a line for each kind of trouble. things are what the
// rows are.
func told[T judged](rows []T, things string) (lines []string) {
	by := map[diagnose.Verdict][]T{}
	for _, r := range unwell(rows) {
		by[r.diagnosis().Verdict] = append(by[r.diagnosis().Verdict], r)
	}
	for verdict, list := range by {
		text := fmt.Sprintf("%s: %s: %s", verdict, list[0].id(), list[0].diagnosis().Summary)
		if len(list) > 1 {
			text = fmt.Sprintf("%s of %d %s, such as %s: %s", verdict, len(list), things, list[0].id(), list[0].diagnosis().Summary)
		}
		lines = append(lines, text)
	}
	slices.Sort(lines)
	return lines
}

// few returns the rows to list, all or at most listed, and how many it omits.
func few[T any](rows []T, wide bool) (shown []T, more int) {
	if wide || len(rows) <= listed {
		return rows, 0
	}
	return rows[:listed], len(rows) - listed
}
