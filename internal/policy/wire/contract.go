package wire

// Discovery of the leading operator, and authentication of both sides. The leader writes the ConfigMap in the namespace of the
// release, and a node reads it before each connection.
const (
	ConfigMapName = "berth-network-policies"
	KeyAddress    = "address" // host:port of the leading operator
	KeyCA         = "ca.crt"  // PEM certificate of the authority that signed the operator's serving certificate
	// ServerName is the name in the serving certificate.
	ServerName = "berth-operator-policies"
	// Audience is the audience of the service account token with which a node's daemon calls the operator.
	Audience = "berth-network-policies"
)
