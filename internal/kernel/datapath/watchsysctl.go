package datapath

import (
	"context"
	"encoding/binary"
	"maps"
	"math"
	"strings"
	"time"
)

// The kernel tells when forwarding and rp_filter change (RTM_NEWNETCONF). Of accept_ra, accept_dad and
// use_oif_addrs_only it tells nothing, so all settings are read now and then besides: a few small
// files an ENI.

const sysctlInterval = 5 * time.Second

// sysctlRepeat is how long a wrong setting is not reported again: it may not be writable, or other software may
// write it back each time.
const sysctlRepeat = time.Minute

// Of linux/netconf.h: the aligned length of struct netconfmsg, NETCONFA_IFINDEX and, of a value for all
// links, NETCONFA_IFINDEX_ALL, which is -1.
const (
	netconfHeader  = 4
	netconfIfIndex = 1
	netconfAll     = math.MaxUint32
)

// readSysctls reports settings that changed, until ctx ends.
func (w *watcher) readSysctls(ctx context.Context) {
	due := time.NewTicker(sysctlInterval)
	defer due.Stop()
	told := toldSysctls{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-due.C:
		case <-w.sysctls:
		}
		if s, err := w.node.established(); err == nil {
			w.tell(ctx, Event{What: strings.Join(told.news(w.node.sysctls.changed(s.config.Sysctls), time.Now()), ", ")})
		}
	}
}

// toldSysctls are the moments at which wrong settings were reported last.
type toldSysctls map[string]time.Time

// news returns the wrong settings that are to be reported now, and notes that they were.
func (t toldSysctls) news(wrong []string, now time.Time) (list []string) {
	maps.DeleteFunc(t, func(_ string, at time.Time) bool { return now.Sub(at) >= sysctlRepeat })
	for _, what := range wrong {
		if _, told := t[what]; !told {
			t[what] = now
			list = append(list, what)
		}
	}
	return list
}

// changesSettings tells whether a message is of settings that Berth may have set: those of all
// links, or of one that is no pod's. A link that comes has its settings told too.
func (w *watcher) changesSettings(data []byte) bool {
	index := attributes(data, netconfHeader)[netconfIfIndex]
	if len(index) != 4 {
		return false
	}
	switch i := binary.NativeEndian.Uint32(index); i {
	case netconfAll:
		return true
	default:
		link, known := w.links[int(i)]
		return known && !strings.HasPrefix(link.name, LinkPrefix)
	}
}
