"""What `mtrun forge sample` asks about where no prompts are given: requests over topics, and follow-ups."""

from __future__ import annotations

TOPICS = (
    "rain", "volcanoes", "the moon", "tides", "earthquakes", "rivers", "deserts", "glaciers", "coral reefs", "clouds",
    "photosynthesis", "bees", "whales", "owls", "cats", "dogs", "horses", "ants", "mushrooms", "dinosaurs",
    "the heart", "sleep", "memory", "vaccines", "vitamins", "headaches", "running", "swimming", "yoga", "first aid",
    "gravity", "magnets", "electricity", "light", "sound", "atoms", "black holes", "comets", "Mars", "telescopes",
    "prime numbers", "fractions", "percentages", "averages", "probability", "triangles", "graphs", "algebra",
    "the French Revolution", "ancient Egypt", "the Silk Road", "the printing press", "railways", "the Vikings",
    "the Roman Empire", "castles", "maps", "museums", "inventions", "flags",
    "bread", "coffee", "tea", "chocolate", "soup", "salad", "cheese", "spices", "breakfast", "baking",
    "gardening", "tomatoes", "compost", "recycling", "bicycles", "electric cars", "airplanes", "bridges", "ships",
    "lighthouses", "Japan", "Brazil", "Kenya", "Iceland", "India", "Paris", "small towns", "the sea", "mountains",
    "islands", "poetry", "jazz", "the piano", "painting", "photography", "theatre", "film", "fairy tales", "chess",
    "football", "public libraries", "job interviews", "saving money", "budgets", "time management", "study habits",
    "good manners", "friendship", "moving house", "birthday parties", "travel", "camping", "letters", "emails",
    "passwords", "computers", "the internet", "Python lists", "sorting", "loops", "functions", "databases", "robots",
    "teachers", "farmers", "firefighters", "grandparents", "neighbours", "a lost key", "a stormy night", "an old clock",
)  # fmt: skip
REQUESTS = (
    "Tell me about {}.",
    "Explain {} to a ten-year-old.",
    "What is most interesting about {}?",
    "Give me five facts about {}.",
    "Write a short story about {}.",
    "Write a poem of eight lines about {}.",
    "Write a short dialogue between two friends about {}.",
    "What are common mistakes people make with {}?",
    "List three questions a beginner might ask about {}, and answer them.",
    "Summarise what everybody should know about {} in two sentences.",
    "Why does {} matter?",
    "Compare {} with something similar.",
    "Write an email to a friend about {}.",
    "Give me a plan for a lesson about {}.",
    "What would you say to somebody who dislikes {}?",
    "Describe {} without naming it.",
    "Make a quiz of four questions about {}.",
    "What words are useful when talking about {}?",
    "How has {} changed over time?",
    "Give me advice about {}.",
    "Write the opening paragraph of an essay on {}.",
    "What is the best way to learn about {}?",
    "Write three titles for an article about {}.",
    "What do people often get wrong about {}?",
    "Write a review, one paragraph, that has to do with {}.",
    "Describe a day that begins with {}.",
    "Write a checklist for somebody who has to deal with {}.",
    "Invent a riddle about {}.",
    "How would you teach {} with things found in a kitchen?",
    "Translate into plain words why people talk about {}.",
)
FOLLOW_UPS = (
    "Can you give me an example?",
    "Make it shorter.",
    "Why is that?",
    "Say that again in simpler words.",
    "What else should I know?",
    "Turn that into a list.",
    "Are you sure? Explain.",
    "Continue.",
    "What is the most important point?",
    "Now write it for a child.",
    "Thanks! And what would be a good next step?",
    "Which part of that surprises people most?",
)


def prompts() -> list[str]:
    """Every request about every topic, in a fixed order."""
    return [request.format(topic) for topic in TOPICS for request in REQUESTS]
