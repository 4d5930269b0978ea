package vpc

import (
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"

	"github.com/berthnet/berth/lab/cloud/spec"
)

// faults are the injected failures of calls.
type faults struct {
	rng  *rand.Rand
	list []*fault       // active faults
	met  map[string]int // number of times that faults applied, by kind
}

type fault struct {
	spec.Fault
	left    int
	skip    int
	pattern *regexp.Regexp
}

func newFault(f spec.Fault) *fault {
	n := &fault{Fault: f, left: f.Count, skip: f.Skip}
	if f.Pattern != "" {
		n.pattern = regexp.MustCompile(f.Pattern) // validated by spec.CheckFault
	}
	return n
}

func newFaults(list []spec.Fault, seed uint64) faults {
	fs := faults{rng: rand.New(rand.NewPCG(seed, 0x6661756c74)), met: map[string]int{}}
	for _, f := range list {
		fs.list = append(fs.list, newFault(f))
	}
	return fs
}

// meet applies the first matching fault to the verdict, and all matching latencies.
func (fs *faults) meet(action string, v *Verdict) {
	for i := 0; i < len(fs.list); i++ {
		f := fs.list[i]
		if !Covers(f.Action, action) {
			continue
		}
		if f.skip > 0 {
			f.skip--
			continue
		}
		if f.Probability > 0 && f.Probability < 1 && fs.rng.Float64() >= f.Probability {
			continue
		}
		if f.Count > 0 {
			if f.left--; f.left == 0 {
				fs.list = slices.Delete(fs.list, i, i+1)
				i--
			}
		}
		fs.met[f.Kind]++
		switch f.Kind {
		case "latency":
			v.Latency += f.Latency.D()
			continue
		case "error":
			v.Err = f.error()
		case "throttle":
			v.Err = throttled()
		case "lostRequest":
			v.LoseRequest = true
		case "lostReply":
			v.LoseReply = true
		case "wrongReply":
			v.Falsify = f.falsify
		}
		return
	}
}

// falsify replaces matches of the fault's pattern in a reply.
func (f *fault) falsify(reply []byte) []byte {
	return f.pattern.ReplaceAll(reply, []byte(f.Replacement))
}

func (f *fault) error() *Error {
	e := &Error{Code: f.Code, Status: f.Status, Message: f.Message}
	if e.Status == 0 {
		e.Status = http.StatusInternalServerError
	}
	if e.Message == "" {
		e.Message = "An injected fault."
	}
	return e
}

// Inject adds a fault and returns a function that removes it. The error names the invalid field of the
// fault.
func (api *API) Inject(f spec.Fault) (remove func(), err error) {
	if err := spec.CheckFault(f); err != nil {
		return nil, err
	}
	n := newFault(f)
	api.world.read(func() { api.faults.list = append(api.faults.list, n) })
	return func() {
		api.world.read(func() {
			api.faults.list = slices.DeleteFunc(api.faults.list, func(o *fault) bool { return o == n })
		})
	}, nil
}

// Faults lists the active faults, including those of the spec, with their remaining Count.
func (api *API) Faults() (out []spec.Fault) {
	api.world.read(func() {
		for _, f := range api.faults.list {
			n := f.Fault
			n.Count, n.Skip = f.left, f.skip
			out = append(out, n)
		}
	})
	return out
}

// FaultsMet returns how often faults have applied since the start, by kind.
func (api *API) FaultsMet() (met map[string]int) {
	api.world.read(func() { met = maps.Clone(api.faults.met) })
	return met
}

// ClearFaults removes all faults.
func (api *API) ClearFaults() { api.world.read(func() { api.faults.list = nil }) }
