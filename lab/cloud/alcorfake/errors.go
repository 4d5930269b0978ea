package alcorfake

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/berthnet/berth/lab/cloud/httpreply"
)

// refusal is an exception with a status. Its message is the reason of its @ResponseStatus.
type refusal struct {
	status  int
	message string
}

func refuse(status int, message string) *refusal { return &refusal{status, message} }

// within is the port manager's reply when another manager refuses a call: an exception of its HTTP
// client, without a status, that quotes the other manager's body.
func (a *api) within(status int, exception, message, path string) *refusal {
	return refuse(500, fmt.Sprintf("org.springframework.web.client.HttpClientErrorException$%s: %d : [%s]", exception, status, a.spring(status, message, path)))
}

// Exceptions of the port manager and of other managers.
var (
	errPort      = refuse(404, "Port not found")
	errNetwork   = refuse(500, "Get VpcEntity exception")
	errSubnet    = refuse(500, "Get SubnetEntity exception")
	errGroup     = refuse(500, "Get SecurityGroupEntity exception")
	errNode      = refuse(500, "Get node information exception")
	errNetworkID = refuse(412, "Network id is required")
	errFixedIPs  = refuse(412, "Fixed ips invalid")
	errMAC       = refuse(412, "Mac address invalid")
	// errNull is a NullPointerException, for example for a request without a port.
	errNull = refuse(500, "No message available")
)

func (a *api) errConflict() *refusal {
	return a.within(412, "PreconditionFailed", "Ip address conflict with exist", "/ips")
}

func (a *api) errFull() *refusal {
	return a.within(412, "PreconditionFailed", "Ip address number not enough in the specified Ipv4AddrRange", "/ips")
}

func (a *api) errOutside() *refusal {
	return a.within(400, "BadRequest", "Ip address invalid", "/ips")
}

func (a *api) errNotUnique() *refusal {
	return a.within(400, "BadRequest", "This mac address is not unique!!", "/macs")
}

// spring is the body of an exception (Spring Boot 2.2, DefaultErrorAttributes).
func (a *api) spring(status int, message, path string) []byte {
	b, err := json.Marshal(struct {
		Timestamp string `json:"timestamp"`
		Status    int    `json:"status"`
		Error     string `json:"error"`
		Message   string `json:"message"`
		Path      string `json:"path"`
	}{a.clock.Now().UTC().Format("2006-01-02T15:04:05.000+0000"), status, http.StatusText(status), message, path})
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

type reply = httpreply.Reply

func jsonReply(status int, body any) reply { return httpreply.JSON(status, body) }

func (a *api) refused(r *http.Request, e *refusal) reply {
	return reply{Status: e.status, Header: map[string]string{"Content-Type": "application/json"}, Body: a.spring(e.status, e.message, r.URL.Path)}
}

// Fault makes calls fail; see httpreply.
type Fault = httpreply.Fault
