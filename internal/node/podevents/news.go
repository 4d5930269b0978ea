package podevents

import "github.com/berthnet/berth/internal/node/attachment"

// News is what became of the ADD of one interface of a pod, or of a pod that runs.
type News struct {
	Pod    attachment.Pod // as the runtime names it
	IfName string
	Kind   Kind
	// Cause is the reason as metrics have it, such as subnet-full, and Message
	// tells a person of it. Both are empty of an ADD that worked.
	Cause, Message string
	Addresses      []string // in CIDR form, of an ADD that worked
}

// subject is whom news is of.
type subject struct {
	pod    attachment.Pod
	ifName string
}

func (n News) subject() subject { return subject{n.Pod, n.IfName} }
