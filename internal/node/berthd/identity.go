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

// identityFile keeps the identity for a start without the metadata service.
const identityFile = "identity.json"

// knownTimeout bounds the metadata service's answer when the identity is known from a former start in
// the same boot.
const knownTimeout = 5 * time.Second

type savedIdentity struct {
	BootID   string         `json:"bootID"`
	Identity cloud.Identity `json:"identity"`
}

// identify asks the metadata service for the instance's identity. When it does not answer, or names
// another instance, the identity of a former start in the same boot counts: an instance cannot change
// its identity while it runs, and another instance has other ENIs and records.
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
		log.Error("the metadata service names another instance than before in this boot; keeping the former identity. Remove the file if the node is the other instance",
			"instance", known.InstanceID, "other", id.InstanceID, "file", path)
		return known, nil
	case err == nil:
		if err := writeIdentity(path, savedIdentity{bootID, id}); err != nil { // as on a full disk
			log.Warn("saving the identity; the next start needs the metadata service", "err", err)
		}
		return id, nil
	case isKnown && ctx.Err() == nil:
		log.Warn("the metadata service does not answer; using the identity of a former start", "instance", known.InstanceID, "err", err)
		return known, nil
	}
	return id, fmt.Errorf("reading the identity from the metadata service: %w", err)
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
