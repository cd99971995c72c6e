"""Commands on nodes, by whichever way works there."""
