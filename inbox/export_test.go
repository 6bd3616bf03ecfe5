package inbox

// DeleteBatchStatement lets a test look at its plan.
var DeleteBatchStatement = deleteBatchStatement
