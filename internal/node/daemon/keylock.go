package daemon

import (
	"context"
	"sync"
)

// keyLocks is one lock for each key, made when first wanted and forgotten
// when nobody holds or wants it.
type keyLocks struct {
	mu    sync.Mutex // guards locks and the counts in it, memory only
	locks map[string]*keyLock
}

type keyLock struct {
	sem  chan struct{} // holds one token while locked
	uses int           // holders and waiters
}

func newKeyLocks() *keyLocks { return &keyLocks{locks: map[string]*keyLock{}} }

// lock waits for the key's lock, or for ctx to end, whose cause it then
// returns. unlock must be called once.
func (k *keyLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	l := k.locks[key]
	if l == nil {
		l = &keyLock{sem: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.uses++
	k.mu.Unlock()

	select {
	case l.sem <- struct{}{}:
		return func() {
			<-l.sem
			k.drop(key, l)
		}, nil
	case <-ctx.Done():
		k.drop(key, l)
		return nil, context.Cause(ctx)
	}
}

// try takes the key's lock if nobody holds it. unlock must be called once, if ok.
func (k *keyLocks) try(key string) (unlock func(), ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locks[key] != nil {
		return nil, false
	}
	l := &keyLock{sem: make(chan struct{}, 1), uses: 1}
	l.sem <- struct{}{}
	k.locks[key] = l
	return func() {
		<-l.sem
		k.drop(key, l)
	}, true
}

func (k *keyLocks) drop(key string, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.uses--; l.uses == 0 {
		delete(k.locks, key)
	}
}
