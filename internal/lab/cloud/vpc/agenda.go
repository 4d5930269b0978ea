package vpc

import (
	"container/heap"
	"time"
)

// task is something that happens by itself at a moment, with the lock held.
type task struct {
	at  time.Time
	seq int // keeps tasks of the same moment in order
	do  func()
}

type agenda []task

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	if a[i].at.Equal(a[j].at) {
		return a[i].seq < a[j].seq
	}
	return a[i].at.Before(a[j].at)
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(task)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// after has do run, with the lock held, once d has passed by the cloud's
// clock; at once when d is zero. The lock is held.
func (c *Cloud) after(d time.Duration, do func()) {
	if d <= 0 {
		do()
		return
	}
	c.eventually(d, do)
	due := c.clock.After(d)
	go func() {
		select {
		case <-due:
			c.read(func() {})
		case <-c.done:
		}
	}()
}

// eventually is after for what nobody waits for: it runs with the first call
// of any kind once d has passed. The lock is held.
func (c *Cloud) eventually(d time.Duration, do func()) {
	c.tasks++
	heap.Push(&c.agenda, task{c.clock.Now().Add(d), c.tasks, do})
}

// settle runs what has fallen due. Every reader and writer settles first, so
// that nobody sees a state that should be over. The lock is held.
func (c *Cloud) settle() {
	now := c.clock.Now()
	for len(c.agenda) > 0 && !c.agenda[0].at.After(now) {
		heap.Pop(&c.agenda).(task).do()
	}
}

// change runs f with the lock held and then delivers the events it caused.
func (c *Cloud) change(f func() error) error {
	c.mu.Lock()
	c.settle()
	err := f()
	c.mu.Unlock()
	c.deliver()
	return err
}

// read runs f with the lock held.
func (c *Cloud) read(f func()) {
	_ = c.change(func() error { f(); return nil })
}
