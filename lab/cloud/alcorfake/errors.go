package alcorfake

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// refusal is an exception with a status: as Spring answers it, with the reason of its
// @ResponseStatus for a message.
type refusal struct {
	status  int
	message string
}

func refuse(status int, message string) *refusal { return &refusal{status, message} }

// within is the refusal of another manager, as the port manager tells it: an exception of
// its HTTP client that has no status of its own. The client quotes the other's body.
func (c *Cloud) within(status int, exception, message, path string) *refusal {
	return refuse(500, fmt.Sprintf("org.springframework.web.client.HttpClientErrorException$%s: %d : [%s]", exception, status, c.spring(status, message, path)))
}

// The refusals (exceptions of the port manager, and of those that it asks).
var (
	errPort      = refuse(404, "Port not found")
	errNetwork   = refuse(500, "Get VpcEntity exception")
	errSubnet    = refuse(500, "Get SubnetEntity exception")
	errGroup     = refuse(500, "Get SecurityGroupEntity exception")
	errNode      = refuse(500, "Get node information exception")
	errNetworkID = refuse(412, "Network id is required")
	errFixedIPs  = refuse(412, "Fixed ips invalid")
	errMAC       = refuse(412, "Mac address invalid")
	// errNull is a NullPointerException: of a request without a port, say.
	errNull = refuse(500, "No message available")
)

func (c *Cloud) errConflict() *refusal {
	return c.within(412, "PreconditionFailed", "Ip address conflict with exist", "/ips")
}

func (c *Cloud) errFull() *refusal {
	return c.within(412, "PreconditionFailed", "Ip address number not enough in the specified Ipv4AddrRange", "/ips")
}

func (c *Cloud) errOutside() *refusal {
	return c.within(400, "BadRequest", "Ip address invalid", "/ips")
}

func (c *Cloud) errNotUnique() *refusal {
	return c.within(400, "BadRequest", "This mac address is not unique!!", "/macs")
}

// spring is the body of an exception (Spring Boot 2.2, DefaultErrorAttributes).
func (c *Cloud) spring(status int, message, path string) []byte {
	b, err := json.Marshal(struct {
		Timestamp string `json:"timestamp"`
		Status    int    `json:"status"`
		Error     string `json:"error"`
		Message   string `json:"message"`
		Path      string `json:"path"`
	}{c.clock.Now().UTC().Format("2006-01-02T15:04:05.000+0000"), status, http.StatusText(status), message, path})
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

// reply is an answer before it is sent.
type reply struct {
	status int
	header map[string]string
	body   []byte
}

func (c *Cloud) refused(r *http.Request, e *refusal) reply {
	return reply{e.status, map[string]string{"Content-Type": "application/json"}, c.spring(e.status, e.message, r.URL.Path)}
}

func jsonReply(status int, body any) reply {
	b, err := json.Marshal(body)
	if err != nil {
		return reply{500, nil, []byte("the lab cannot write its answer: " + err.Error())}
	}
	return reply{status, map[string]string{"Content-Type": "application/json"}, b}
}
