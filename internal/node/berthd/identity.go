package berthd

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/statefile"
)

// identityFile remembers who the node is, for a start without metadata service.
const identityFile = "identity.json"

// knownTimeout is how long the metadata service gets to answer when the
// identity is known from an earlier start in the same boot.
const knownTimeout = 5 * time.Second

type savedIdentity struct {
	BootID   string         `json:"bootID"`
	Identity cloud.Identity `json:"identity"`
}

// identify asks the metadata service who this node is. When that does not
// answer, or names another instance, the answer to an earlier daemon counts, if
// the kernel was not booted since: an instance cannot change its identity while it
// runs, and one that is not this node's has other ENIs and other records.
func identify(ctx context.Context, meta cloud.Metadata, stateDir, bootID string, log *slog.Logger) (cloud.Identity, error) {
	path := filepath.Join(stateDir, identityFile)
	known, isKnown := readIdentity(path, bootID)
	askCtx := ctx
	if isKnown {
		var cancel context.CancelFunc
		askCtx, cancel = context.WithTimeout(ctx, knownTimeout)
		defer cancel()
	}
	id, err := meta.Identity(askCtx)
	switch {
	case err == nil && isKnown && id.InstanceID != known.InstanceID:
		log.Error("the metadata service names another instance than before in this boot, which cannot be; going on as before. Should the node be the other one, remove the file",
			"instance", known.InstanceID, "other", id.InstanceID, "file", path)
		return known, nil
	case err == nil:
		if err := writeIdentity(path, savedIdentity{bootID, id}); err != nil { // as on a full disk
			log.Warn("a start without the metadata service would not know who this node is", "err", err)
		}
		return id, nil
	case isKnown && ctx.Err() == nil:
		log.Warn("the metadata service does not answer, using the identity of an earlier start", "instance", known.InstanceID, "err", err)
		return known, nil
	}
	return id, fmt.Errorf("asking the metadata service who this node is: %w", err)
}

func readIdentity(path, bootID string) (cloud.Identity, bool) {
	data, err := statefile.Read(path)
	if err != nil {
		return cloud.Identity{}, false
	}
	var saved savedIdentity
	if statefile.Decode(data, &saved) != nil || saved.BootID != bootID || saved.Identity.InstanceID == "" {
		return cloud.Identity{}, false
	}
	return saved.Identity, true
}

func writeIdentity(path string, saved savedIdentity) error {
	data, err := statefile.Encode(saved)
	if err == nil {
		err = statefile.Create(path+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("remembering the node's identity: %w", err)
	}
	return nil
}
