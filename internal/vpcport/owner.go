package vpcport

import (
	"crypto/sha256"
	"strings"

	"github.com/berthnet/berth/internal/mac"
)

// Owner is the device owner of Berth's ports. Neutron reserves "network:" for itself and treats "compute:" as a workload's (Neutron API
// reference, device_owner).
const Owner = "compute:berth"

// devicePrefix is the prefix of the device of every port of Berth; the cluster and the UID of a PodNIC follow.
const devicePrefix = "berth:"

// Device returns the device of a NIC's port. It is unique among the NICs of all clusters, and always the same for a NIC. Neither argument
// may be empty; the cluster must not contain a colon.
func Device(cluster, uid string) string { return devicePrefix + cluster + ":" + uid }

// DeviceUID returns the UID of the NIC in a device. It returns false if the device belongs to another cluster or not to Berth.
func DeviceUID(cluster, device string) (uid string, ok bool) {
	uid, ok = strings.CutPrefix(device, devicePrefix+cluster+":")
	return uid, ok && uid != ""
}

// NamespaceTag returns the tag by which the owner of a port allows the pods of a namespace to use it.
func NamespaceTag(cluster, namespace string) string { return Device(cluster, namespace) }

// warmUID replaces the UID of a NIC in the device of a warm port. Kubernetes assigns no such UID.
const warmUID = "warm/"

// WarmDevice returns the device of a warm port: one created for a VPC object before a NIC needed it. The ID distinguishes the warm ports
// of the object.
func WarmDevice(cluster, vpcUID, id string) string {
	return Device(cluster, warmUID+vpcUID+"/"+id)
}

// WarmVPC returns the UID of the VPC object of a warm port. It returns false for other ports, including former warm ports that a NIC uses.
func (p Port) WarmVPC(cluster string) (uid string, ok bool) {
	of, ok := strings.CutPrefix(p.Device, Device(cluster, warmUID))
	uid, _, whole := strings.Cut(of, "/")
	return uid, ok && whole && p.Owner == Owner
}

// PortName returns the name of a port that Berth creates for a NIC. It begins with berth/ and the UID, which users cannot know before the
// NIC exists, so that they do not choose such names. The rest is for people, and a provider may truncate it.
func PortName(uid, namespace, name string) string { return namePrefix(uid) + namespace + "/" + name }

func namePrefix(uid string) string { return namesPrefix + uid + "/" }

// namesPrefix is the prefix of the names of ports that Berth creates.
const namesPrefix = "berth/"

// MadeFor reports whether Berth, in this cluster, created a port for a NIC: the port's name or MAC address depends on the NIC's UID. Warm
// ports and users' ports have neither.
func (p Port) MadeFor(cluster, uid string) bool {
	return strings.HasPrefix(p.Name, namePrefix(uid)) || p.hasDerivedMAC(cluster, uid)
}

// maxTries is how many of a NIC's possible MAC addresses are recognized.
const maxTries = 16

func (p Port) hasDerivedMAC(cluster, uid string) bool {
	for try := range byte(maxTries) {
		if p.MAC.String() == DerivedMAC(cluster, uid, try).String() {
			return true
		}
	}
	return false
}

// NIC returns the UID of the NIC of this cluster that has a port, according to both the port's device and its owner. For a warm port it is
// not a UID of Kubernetes. If another client cleared the device, the UID comes from the name, and the MAC address must match it, because a
// name does not identify the cluster.
func (p Port) NIC(cluster string) (uid string, ok bool) {
	switch {
	case p.Owner != Owner:
		return "", false
	case p.Device != "":
		return DeviceUID(cluster, p.Device)
	}
	of, named := strings.CutPrefix(p.Name, namesPrefix)
	uid, _, ok = strings.Cut(of, "/")
	return uid, named && ok && uid != "" && p.hasDerivedMAC(cluster, uid)
}

// DerivedMAC returns the MAC address for the port of a NIC. It is always the same, so that the provider refuses a second port for the NIC.
// If another port has the address, the next value of try gives a different one. The address is locally administered and unicast (IEEE
// 802), with 46 bits of a hash: the probability that two of 100,000 ports of a network have the same one is 7 in 100,000.
func DerivedMAC(cluster, uid string, try byte) mac.Addr {
	sum := sha256.Sum256([]byte("port mac\x00" + cluster + "\x00" + uid + "\x00" + string(rune(try))))
	addr := mac.Addr(sum[:6:6])
	addr[0] = addr[0]&^0x01 | 0x02
	return addr
}

// Cut shortens a text to at most the given number of bytes, without splitting a character.
func Cut(text string, most int) string {
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "")
}
