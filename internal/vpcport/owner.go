package vpcport

import (
	"crypto/sha256"
	"strings"

	"github.com/berthnet/berth/internal/mac"
)

// Owner is the device owner of Berth's ports. Neutron reserves "network:" for itself and treats
// "compute:" as that of a workload (Neutron API reference, device_owner).
const Owner = "compute:berth"

// devicePrefix begins the device of every port of Berth; the cluster and the UID of a PodNIC
// follow.
const devicePrefix = "berth:"

// Device is the device of the port of a NIC. It is unique among the NICs of all clusters, and the
// same each time. Neither part may be empty; the cluster must have no colon.
func Device(cluster, uid string) string { return devicePrefix + cluster + ":" + uid }

// DeviceUID is the UID of the NIC in a device; ok is false if the device is of another cluster or
// not of Berth.
func DeviceUID(cluster, device string) (uid string, ok bool) {
	uid, ok = strings.CutPrefix(device, devicePrefix+cluster+":")
	return uid, ok && uid != ""
}

// NamespaceTag is the tag by which the owner of a port lets the pods of a namespace use it.
func NamespaceTag(cluster, namespace string) string { return Device(cluster, namespace) }

// warmUID is in place of the UID of a NIC. Kubernetes assigns no such UID.
const warmUID = "warm/"

// WarmDevice is the device of a warm port: one that was made for a VPC object before a NIC needed
// it. The ID distinguishes the warm ports of the object.
func WarmDevice(cluster, vpcUID, id string) string {
	return Device(cluster, warmUID+vpcUID+"/"+id)
}

// WarmVPC is the UID of the VPC object of a warm port; ok is false for other ports, and for a warm
// port that a NIC uses since.
func (p Port) WarmVPC(cluster string) (uid string, ok bool) {
	of, ok := strings.CutPrefix(p.Device, Device(cluster, warmUID))
	uid, _, whole := strings.Cut(of, "/")
	return uid, ok && whole && p.Owner == Owner
}

// Mine reports whether Berth, in this cluster, may delete a port: if both its device and its owner
// are Berth's.
func (p Port) Mine(cluster string) bool {
	_, ok := DeviceUID(cluster, p.Device)
	return ok && p.Owner == Owner
}

// DerivedMAC is the MAC address for the port of a NIC. It is the same each time, so that the provider
// refuses a second port for the NIC. If another port has it, the next value of try gives another
// address. It is locally administered and unicast (IEEE 802), with 46 bits of a hash: the probability
// that two of 100,000 ports of a network have the same one is 7 in 100,000.
func DerivedMAC(cluster, uid string, try byte) mac.Addr {
	sum := sha256.Sum256([]byte("port mac\x00" + cluster + "\x00" + uid + "\x00" + string(rune(try))))
	addr := mac.Addr(sum[:6:6])
	addr[0] = addr[0]&^0x01 | 0x02
	return addr
}

// Cut shortens a text to at most so many bytes, without splitting a character.
func Cut(text string, most int) string {
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "")
}
