package broker

import "strings"

// didYouMean ends the error about an unknown name: with the nearest of those that exist,
// or with all of them. All begin with the prefix.
func didYouMean(prefix, name string, exist []string, separator string) string {
	name = strings.TrimPrefix(name, prefix)
	limit := max(2, len(name)/3)
	if len(name) <= 3 {
		limit = 1
	}
	nearest, least := "", limit+1
	for _, candidate := range exist {
		if d := difference(name, strings.TrimPrefix(candidate, prefix), separator); d < least {
			nearest, least = candidate, d
		}
	}
	if nearest == "" {
		return "there are " + strings.Join(exist, ", ")
	}
	return "did you mean " + nearest + "?"
}

// difference counts the edits between two names. A section that was forgotten does not
// count, a wrong one counts as one.
func difference(name, candidate, separator string) int {
	least := distance(name, candidate)
	_, last, ok := strings.Cut(candidate, separator)
	if !ok {
		return least
	}
	least = min(least, distance(name, last))
	if _, nameLast, ok := strings.Cut(name, separator); ok {
		least = min(least, 1+distance(nameLast, last))
	}
	return least
}

// distance is Levenshtein's, whatever the case of letters.
func distance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
