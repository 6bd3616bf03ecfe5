package embedded

import "context"

// NewestFirst is for tests: which servers are installed is not theirs to say.
var NewestFirst = newestFirst

// Installed returns the folder of the server that StartPostgres would take, "" if it
// would fetch one.
func Installed(ctx context.Context) (string, error) {
	acc, err := serverAccount()
	if err != nil {
		return "", err
	}
	return findBinaries(ctx, "", acc)
}
