package wire

// How a node finds the leading operator, and how both authenticate. The leader writes the ConfigMap, in the namespace of the
// release, and a node reads it each time it connects.
const (
	ConfigMapName = "berth-network-policies"
	KeyAddress    = "address" // host:port of the leading operator
	KeyCA         = "ca.crt"  // PEM; it has signed the certificate with which the operator serves
	// ServerName is the name in that certificate.
	ServerName = "berth-operator-policies"
	// Audience is that of the service account token with which a node's daemon calls the operator.
	Audience = "berth-network-policies"
)
