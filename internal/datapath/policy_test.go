package datapath

import "testing"

// The addresses of pods in the tests.
const (
	podA  = "10.0.0.65" // on the primary ENI
	podB  = "10.0.0.33" // on the secondary ENI
	podC  = "10.0.0.34"
	podA6 = "2001:db8::2:0:0:5"
	podB6 = "2001:db8::1:0:0:5"
)

func TestPodsReachWhatTheyShould(t *testing.T) {
	v := newVPC(t)
	a, b := v.pod(podA, podA6), v.pod(podB, podB6)
	v.router.serveTCP(":80")
	a.serveTCP(":80")
	b.serveTCP(":80")
	v.host.serveTCP(":81")

	for _, p := range []*pod{a, b} {
		v4, v6 := p.want.IPv4.String(), p.want.IPv6.String()
		p.seenAs(peer+":80", v4)
		p.seenAs(onPrem+":80", v4)
		p.seenAs(internet+":80", nodeAddr)
		p.seenAs("169.254.169.254:80", nodeAddr)
		p.seenAs(nodeAddr+":81", v4)
		p.seenAs("["+peer6+"]:80", v6)
		p.seenAs("["+nodeAddr6+"]:81", v6)
		v.host.seenAs(v4+":80", nodeAddr)
		v.host.seenAs("["+v6+"]:80", nodeAddr6)
		v.router.seenAs(v4+":80", "10.0.0.1")
	}
	a.seenAs(podB+":80", podA)
	b.seenAs(podA+":80", podB)
	a.seenAs("["+podB6+"]:80", podA6)
	b.seenAs("["+podA6+"]:80", podB6)
}
