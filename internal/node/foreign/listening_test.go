package foreign

import (
	"maps"
	"testing"
)

func TestListening(t *testing.T) {
	got := listening([]byte("Num       RefCount Protocol Flags    Type St Inode Path\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 11 /run/coild.sock\n" +
		"0000000000000000: 00000003 00000000 00000000 0001 03 12 /var/run/cilium/cilium.sock\n" + // a connection
		"0000000000000000: 00000002 00000000 00010000 0001 01 13 /run/berth/berthd.sock\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 14\n" +
		"0000000000000000: 00000002 00000000 00010000 0001 01 15 /var/run/aws-node/ipamd.sock\n\n"))
	if want := map[System]bool{Coil: true, AmazonVPCCNI: true}; !maps.Equal(got, want) {
		t.Errorf("listening = %v, want %v", got, want)
	}
}
