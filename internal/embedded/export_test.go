package embedded

// NewestFirst is for tests: which servers are installed is not theirs to say.
var NewestFirst = newestFirst
