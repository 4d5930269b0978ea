package nicrequest

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// maxReadable is how much of the pod's name a PodNIC's name has, in bytes.
const maxReadable = 200

var hashText = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// ObjectName is the name of the PodNIC of a pod's NIC: for a person the names of both,
// and 40 bits of a hash, by which the next pod of that name has others. The same pod and
// NIC give the same name, so that it cannot be made twice.
func ObjectName(pod, uid, nic string) string {
	sum := sha256.Sum256([]byte(uid + "\x00" + nic))
	if len(pod) > maxReadable {
		pod = strings.TrimRight(pod[:maxReadable], ".-")
	}
	readable := strings.Map(func(r rune) rune {
		if r == '_' || r == '.' {
			return '-'
		}
		return r
	}, strings.ToLower(nic))
	return pod + "-" + strings.Trim(readable, "-") + "-" + hashText.EncodeToString(sum[:5])
}
