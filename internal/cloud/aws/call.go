package aws

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"

	"github.com/berthnet/berth/internal/cloud/pace"
)

// invoke makes one EC2 call by the rules of the package comment. The error is
// always a *cloud.Error. Credentials that EC2 calls expired are fetched again, once.
func invoke[In, Out any](ctx context.Context, c *Client, what pace.Call,
	call func(context.Context, In, ...func(*ec2.Options)) (Out, error), in In,
) (out Out, err error) {
	renewed := false
	err = c.pace.Do(ctx, what, func(ctx context.Context) pace.Reply {
		got, err := call(ctx, in)
		if err == nil {
			out = got
			return pace.Reply{}
		}
		r := pace.Reply{Err: fail(what.Action, err), Code: localCode(err)}
		r.Unsent = r.Code == pace.CodeCredentials
		if expired[r.Err.Code] && !renewed {
			c.logger.Info("EC2 refused the credentials, fetching new ones", "op", what.Action, "code", r.Err.Code)
			renewed, r.Again = true, true
			c.creds.forget()
		}
		return r
	})
	return out, err
}

// localCode is the code for an Observer of an error that has none of EC2's.
func localCode(err error) string {
	if _, ok := errors.AsType[*noCredentials](err); ok {
		return pace.CodeCredentials
	}
	_, bad := errors.AsType[*badAnswer](err)
	_, parse := errors.AsType[*smithy.DeserializationError](err)
	if bad || parse {
		return pace.CodeBadReply
	}
	return pace.CodeNoReply
}
