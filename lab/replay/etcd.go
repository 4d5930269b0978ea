package replay

// EtcdDump returns what Coil v1 has in etcd in the recording V1, as etcdctl prints it.
func EtcdDump() ([]byte, error) { return clusters.ReadFile("clusters/" + V1 + ".etcd.json") }
