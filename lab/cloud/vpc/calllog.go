package vpc

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Limits of the call log: the number of calls, and the size of each call's parameters in bytes. Together
// they amount to 16 MiB.
const (
	callLogSize   = 4096
	callLogParams = 4 << 10
)

// CallRecord is one call in the log.
type CallRecord struct {
	Seq       uint64    `json:"seq"` // sequence number of the call, from 1
	Time      time.Time `json:"time"`
	Action    string    `json:"action"`
	Principal string    `json:"caller"` // ARN; "" if the call was not authenticated
	// Params are the parameters that fit, or nil if the call was not authenticated.
	Params  map[string][]string `json:"params,omitempty"`
	Omitted int                 `json:"omitted,omitempty"` // number of parameters that did not fit
	Code    string              `json:"code,omitempty"`    // "" for success; "LostRequest" and "LostReply" for faults
}

// callLog is a ring buffer of the last calls.
type callLog struct {
	records []CallRecord
	at      int // the oldest call, once the buffer is full
	seq     uint64
}

func (l *callLog) add(r CallRecord) {
	l.seq++
	r.Seq = l.seq
	r.Params, r.Omitted = bounded(r.Params)
	if len(l.records) < callLogSize {
		l.records = append(l.records, r)
		return
	}
	l.records[l.at] = r
	l.at = (l.at + 1) % callLogSize
}

// after returns the calls after seq, oldest first.
func (l *callLog) after(seq uint64) []CallRecord {
	out := append(slices.Clone(l.records[l.at:]), l.records[:l.at]...)
	return slices.DeleteFunc(out, func(r CallRecord) bool { return r.Seq <= seq })
}

// bounded copies the parameters that fit in the log, in the order of their names. The copies share no
// memory with the request.
func bounded(in map[string][]string) (out map[string][]string, omitted int) {
	left := callLogParams
	for _, name := range slices.Sorted(maps.Keys(in)) {
		size := len(name)
		for _, v := range in[name] {
			size += len(v)
		}
		if size > left {
			omitted++
			continue
		}
		left -= size
		if out == nil {
			out = map[string][]string{}
		}
		values := make([]string, len(in[name]))
		for i, v := range in[name] {
			values[i] = strings.Clone(v)
		}
		out[strings.Clone(name)] = values
	}
	return out, omitted
}

// CallLog returns the last calls, oldest first.
func (api *API) CallLog() []CallRecord { return api.CallsAfter(0) }

// CallsAfter returns the logged calls with a Seq above seq, oldest first.
func (api *API) CallsAfter(seq uint64) (out []CallRecord) {
	api.world.read(func() { out = api.log.after(seq) })
	return out
}
