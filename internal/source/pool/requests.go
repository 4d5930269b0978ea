package pool

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthnet/berth/api/v1alpha1"
)

// A request has one of a few names that only this node uses for this pool, so that repeating a create after a lost reply
// makes no second request. Whoever has another node's token can create requests with these names too; then this node
// uses a random name.

// requests is the node's BlockRequests.
type requests struct {
	byName    map[string]*request
	pending   map[string]bool // names of requests that are in flight, or were made and are not in the watch yet
	salts     map[slot]string // of the names of requests in place of names that others took
	latencies []latency       // of requests that were answered, to be observed
}

// nodeHash identifies a node in names that have no room for its own.
func nodeHash(node string) string {
	sum := sha256.Sum256([]byte(node))
	return hex.EncodeToString(sum[:8])
}

// requestName names the request of a node for a pool in a slot.
func requestName(pool, node string, slot int) string {
	return fmt.Sprintf("%s-%s-%d", pool, nodeHash(node), slot)
}

// slot is one of the places for requests that a node has for a pool.
type slot struct {
	pool   string
	number int
}

// nameFor returns the name of the request in a slot: the usual one, unless another node took it.
func (q *requests) nameFor(at slot, node string) string {
	if salt, ok := q.salts[at]; ok {
		node += "/" + salt
	}
	return requestName(at.pool, node, at.number)
}

// avoid replaces a name that another node took by one that includes salt.
func (q *requests) avoid(pool, name, salt string) {
	delete(q.pending, name)
	q.salts[slot{pool, slotOf(name)}] = salt
}

// slotOf is the slot of a request's name, or -1.
func slotOf(name string) int {
	n, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	if err != nil || n < 0 || n >= maxOutstanding {
		return -1
	}
	return n
}

// request is a BlockRequest of this node.
type request struct {
	name, pool string
	uid        types.UID
	created    time.Time // when this daemon created it, or first saw it
	block      string    // that was assigned; empty: none
	failed     string    // reason; empty while it has not failed
	message    string    // of the failure

	completed time.Time // since when it is complete
	spent     bool      // its block was looked up and no longer exists
	surplus   time.Time // since when nobody needs it
	measured  bool      // its latency was observed
}

// complete reports whether the operator is done with it.
func (r *request) complete() bool { return r.block != "" }

// readRequest keeps what matters of a BlockRequest.
func readRequest(o *v1alpha1.BlockRequest, now time.Time) *request {
	r := &request{name: o.Name, pool: o.Spec.PoolName, uid: o.UID, created: now}
	if meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionComplete) {
		r.block, r.completed = o.Status.AddressBlockName, now
	}
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionFailed); c != nil && c.Status == "True" && r.block == "" {
		r.failed, r.message = cmp.Or(c.Reason, "Failed"), c.Message
	}
	return r
}

// set stores a request.
func (q *requests) set(r *request) {
	if before, ok := q.byName[r.name]; ok && before.uid == r.uid {
		r.created, r.spent, r.surplus, r.measured = before.created, before.spent, before.surplus, before.measured
		if before.complete() {
			r.completed = before.completed
		}
	}
	q.byName[r.name] = r
	delete(q.pending, r.name)
}

// drop drops a request that is gone; with uid empty, whichever has the name.
func (q *requests) drop(name string, uid types.UID) {
	if r, ok := q.byName[name]; ok && (uid == "" || r.uid == uid) {
		delete(q.byName, name)
	}
}

// latency is the time from creating a request until the node has its block.
type latency struct {
	pool string
	time time.Duration
}

// measure records the latency of an answered request.
func (q *requests) measure(r *request, now time.Time) {
	if !r.measured && !r.spent {
		q.latencies = append(q.latencies, latency{r.pool, now.Sub(r.created)})
	}
	r.measured = true
}

// of returns the requests for a pool, the oldest first.
func (q *requests) of(pool string) []*request {
	var out []*request
	for _, name := range slices.Sorted(maps.Keys(q.byName)) {
		if r := q.byName[name]; r.pool == pool {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(x, y *request) int { return x.created.Compare(y.created) })
	return out
}

// ask returns creations of up to n requests in unused slots. A request that is in flight counts as one of them and is
// created in the same slot again.
func (q *requests) ask(pool, node string, used map[int]bool, n int) (todo []action) {
	for _, again := range []bool{true, false} {
		for i := 0; i < maxOutstanding && n > 0; i++ {
			name := q.nameFor(slot{pool, i}, node)
			if used[i] || q.pending[name] != again {
				continue
			}
			used[i], q.pending[name] = true, true
			todo = append(todo, action{kind: createRequest, name: name, pool: pool})
			n--
		}
	}
	return todo
}
