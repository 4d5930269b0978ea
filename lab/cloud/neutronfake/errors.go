package neutronfake

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/berthnet/berth/lab/cloud/httpreply"
)

// refusal is a Neutron error.
type refusal struct {
	status    int
	kind, why string
}

func refuse(status int, kind, format string, args ...any) *refusal {
	return &refusal{status, kind, fmt.Sprintf(format, args...)}
}

// badRequest returns the error for a request that Neutron's API layer rejects.
func badRequest(format string, args ...any) *refusal {
	return refuse(400, "HTTPBadRequest", format, args...)
}

// notFound is the error for a resource that does not exist or is not visible to the caller.
func notFound() *refusal { return refuse(404, "HTTPNotFound", "The resource could not be found.") }

func (r *refusal) reply() reply {
	return jsonReply(r.status, map[string]any{"NeutronError": map[string]any{"type": r.kind, "message": r.why, "detail": ""}})
}

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$`)

func uuid(s string) bool { return uuidForm.MatchString(strings.ToLower(s)) }

type reply = httpreply.Reply

func jsonReply(status int, body any) reply { return httpreply.JSON(status, body) }

func textReply(status int, text string) reply {
	return reply{Status: status, Header: map[string]string{"Content-Type": "text/plain; charset=UTF-8"}, Body: []byte(text)}
}

// Fault makes calls fail; see httpreply.
type Fault = httpreply.Fault
