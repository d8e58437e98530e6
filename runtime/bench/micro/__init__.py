"""Parts of mtrun timed alone: what one judgement, one filter, one forward and one configuration take."""
