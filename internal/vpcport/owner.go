package vpcport

import (
	"crypto/sha256"
	"strings"

	"github.com/berthnet/berth/internal/mac"
)

// Owner is the device owner of ports that Berth has. Neutron keeps "network:" for itself
// and treats "compute:" as a workload's (Neutron API reference, device_owner).
const Owner = "compute:berth"

// devicePrefix begins the device of every port that Berth has; the cluster and the UID of
// a PodNIC follow.
const devicePrefix = "berth:"

// Device is the device of the port of a NIC: the same each time, and of no other NIC in
// no other cluster. Neither part may be empty; the cluster must have no colon.
func Device(cluster, uid string) string { return devicePrefix + cluster + ":" + uid }

// DeviceUID is the UID of the NIC that a device is of; ok is false for a device of
// another cluster, or not of Berth.
func DeviceUID(cluster, device string) (uid string, ok bool) {
	uid, ok = strings.CutPrefix(device, devicePrefix+cluster+":")
	return uid, ok && uid != ""
}

// NamespaceTag is the tag of a port that somebody made for the pods of a namespace, which may name it.
func NamespaceTag(cluster, namespace string) string { return Device(cluster, namespace) }

// warmUID stands in the place of a NIC's UID, and is none that Kubernetes gives.
const warmUID = "warm/"

// WarmDevice is the device of a port that was made for the VPC object with a UID before any NIC
// needed it. ID tells such ports apart.
func WarmDevice(cluster, vpcUID, id string) string {
	return Device(cluster, warmUID+vpcUID+"/"+id)
}

// WarmVPC is the UID of the VPC object that a port was made for before any NIC needed it; ok is
// false for other ports, and for one that is marked as a NIC's since.
func (p Port) WarmVPC(cluster string) (uid string, ok bool) {
	of, ok := strings.CutPrefix(p.Device, Device(cluster, warmUID))
	uid, _, whole := strings.Cut(of, "/")
	return uid, ok && whole && p.Owner == Owner
}

// Mine reports whether Berth, in this cluster, may delete a port: by both marks.
func (p Port) Mine(cluster string) bool {
	_, ok := DeviceUID(cluster, p.Device)
	return ok && p.Owner == Owner
}

// DerivedMAC is the MAC address for the port of a NIC: the same each time, so that the
// provider refuses a second port for it. Try tells apart those that are tried one after
// the other when a stranger has one. It is locally administered and unicast (IEEE 802),
// with 46 bits of a hash: among 100,000 ports of a network two have the same with a
// probability of 7 in 100,000.
func DerivedMAC(cluster, uid string, try byte) mac.Addr {
	sum := sha256.Sum256([]byte("port mac\x00" + cluster + "\x00" + uid + "\x00" + string(rune(try))))
	addr := mac.Addr(sum[:6:6])
	addr[0] = addr[0]&^0x01 | 0x02
	return addr
}

// Cut is a text of so many bytes at most, of whole characters.
func Cut(text string, most int) string {
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "")
}
